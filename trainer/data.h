/*
 * trainer/data.h - training text: any file, a byte a token. Order is a function of the global
 * sample index alone, so it is the same at every layout and after every restart.
 *
 * windows = (file bytes - 1) / seq. Sequence g of the run (step * batch + its number in the batch)
 * is window w = g % windows: inputs are bytes [w seq, w seq + seq), targets one further.
 */
#ifndef TRAINER_DATA_H
#define TRAINER_DATA_H

#include <stdint.h>

#include "core/err.h"

struct data {
    const unsigned char *bytes; /* mapped */
    int64_t size, seq, windows;
};

/* Map the file and check it. TP_E_USAGE: empty, shorter than seq + 1 bytes, or with a byte that is
 * no token of a vocabulary of `vocab` (value and offset named); TP_E_NOTFOUND. */
tp_status data_open(struct data *d, const char *path, int64_t seq, int64_t vocab,
                    struct tp_err *err);
void data_close(struct data *d);

/* Sequences first .. first + n - 1 of the run, to ids[n][seq] and targets[n][seq]. */
void data_fetch(const struct data *d, int64_t first, int64_t n, int32_t *ids, int32_t *targets);

#endif
