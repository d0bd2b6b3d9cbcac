/*
 * trainer/data/dataset.h - training data: a long row of tokens (trainer/data/token_file.h) in
 * samples. Order is a function of the global sample index alone, so it is the same at every layout
 * and after every restart.
 *
 * samples = (tokens - 1) / seq. Sequence g of the run (step * batch + its number in the batch) is
 * sample w = g % samples: its inputs are tokens [w seq, w seq + seq), its targets one place later.
 */
#ifndef TRAINER_DATA_DATASET_H
#define TRAINER_DATA_DATASET_H

#include <stdint.h>

#include "core/err.h"
#include "trainer/context/zigzag.h"
#include "trainer/data/token_file.h"

/* Raw bytes for a larger vocabulary must be asked for, as bytes:FILE. */
enum { DATASET_BYTES_VOCAB_MAX = 1024 };

struct dataset {
    struct token_file tokens;
    const char *path; /* borrowed; without "bytes:" */
    int64_t seq, vocab, samples;
};

/* Open and check. TP_E_USAGE: raw bytes for a vocabulary beyond DATASET_BYTES_VOCAB_MAX that were
 * not asked for; fewer than seq + 1 tokens, or one that is not below `vocab` (the message has value
 * and place; in very long files dataset_fetch finds it); else as token_file_open. */
tp_status dataset_open(struct dataset *d, const char *path, int64_t seq, int64_t vocab,
                       struct tp_err *err);
void dataset_close(struct dataset *d);

/* Sequences first .. first + n - 1 of the run, to ids[n][seq] and targets[n][seq]; of each only the
 * tokens that a context-parallel rank has, in the order in which it has them, when `part` is not
 * NULL. TP_E_USAGE: a token outside the vocabulary. TP_E_CORRUPT: the file is shorter than it was
 * when it was opened. */
tp_status dataset_fetch(const struct dataset *d, int64_t first, int64_t n,
                        const struct zigzag *part, int32_t *ids, int32_t *targets,
                        struct tp_err *err);

/* The inputs alone, of whole sequences, as ids[n][seq]. */
tp_status dataset_fetch_ids(const struct dataset *d, int64_t first, int64_t n, int64_t *ids,
                            struct tp_err *err);

#endif
