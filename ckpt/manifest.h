/*
 * ckpt/manifest.h - manifest.json: what a checkpoint is. Its presence is the commit.
 * The format is specified in docs/FORMAT.md; MANIFEST_VERSION is its version.
 */
#ifndef CKPT_MANIFEST_H
#define CKPT_MANIFEST_H

#include <stdint.h>

#include "ckpt/shard.h"
#include "core/arena.h"
#include "core/err.h"
#include "layout/layout.h"

enum { MANIFEST_VERSION = 2, MANIFEST_MAX_BYTES = 256 << 20, SAVE_ID_TEXT = 33 };

/* What a trainer needs besides tensors to go on with the same curve. */
struct train_state {
    int64_t step;        /* optimizer steps done */
    int64_t next_sample; /* data cursor: global index of the next sequence */
    int64_t tokens;      /* seen so far */
    uint64_t seed;
    const char *dtype;   /* "fp32" or "bf16": arithmetic of the trainer */
    const char *options; /* JSON object: steps, batch, seq, lr, ... as given, for people and for
                            checking a --resume; may be NULL */
};

struct manifest {
    char save_id[SAVE_ID_TEXT]; /* 32 hexadecimal digits, random */
    int64_t epoch;              /* of the writing job; see ckpt/commit.h */
    int64_t step;
    struct layout layout;     /* spec, stage table, tensors in id order */
    const char *model_config; /* config.json text; NULL when the model is unknown */
    struct train_state state;
    int n_shards;
    struct shard_info *shards;
};

/* JSON text, its own checksum last. *text is malloc'ed. */
tp_status manifest_format(char **text, size_t *size, const struct manifest *m, struct tp_err *err);

/* Parse and check: version, checksum, every field's kind and range, names that are plain and
 * unique, shards once each. Everything lives in the arena.
 * TP_E_CORRUPT: damaged or written by a newer version (the sentence says which). */
tp_status manifest_parse(struct manifest *out, const char *text, size_t size, const char *path,
                         struct arena *arena, struct tp_err *err);

#endif
