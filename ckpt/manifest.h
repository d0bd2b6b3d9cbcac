/*
 * ckpt/manifest.h - manifest.json: what a checkpoint step contains. Its presence is the commit.
 * docs/FORMAT.md specifies the file; MANIFEST_VERSION is the version of the format.
 */
#ifndef CKPT_MANIFEST_H
#define CKPT_MANIFEST_H

#include <stdint.h>

#include "ckpt/shard.h"
#include "core/arena.h"
#include "core/err.h"
#include "core/json_scan.h"
#include "layout/layout.h"

#define MANIFEST_FILE   "manifest.json"
#define MANIFEST_FORMAT "tp-ckpt"

/* Steps of which no shard is chunked are written as version 2, which programs from before version 3
 * read. */
enum {
    MANIFEST_VERSION = 3,
    MANIFEST_VERSION_RAW = 2,
    MANIFEST_MAX_BYTES = 256 << 20,
    SAVE_ID_TEXT = 33
};

/* The end of the file: head, 64 hexadecimal digits, end. The end closes the object too. */
#define MANIFEST_CHECKSUM_HEAD "\"checksum\": \""
#define MANIFEST_CHECKSUM_END  "\"\n}\n"

/* What a trainer needs besides tensors to continue with the same loss curve. */
struct manifest_train_state {
    int64_t step;            /* optimizer steps done */
    int64_t optimizer_start; /* the step at which the moments were zero; usually 0 */
    int64_t next_sample;     /* data cursor: global index of the next sequence */
    int64_t tokens;          /* seen so far */
    uint64_t seed;
    const char *dtype;   /* "fp32" or "bf16": arithmetic of the trainer */
    const char *options; /* JSON object with the trainer's options (steps, batch, seq, lr, ...), for
                            people and for the checks of --resume; may be NULL */
};

struct manifest {
    char save_id[SAVE_ID_TEXT]; /* 32 hexadecimal digits, random */
    int64_t epoch;              /* of the job that wrote it; see ckpt/epoch.h */
    int64_t step;
    struct layout layout;     /* spec, stage table, tensors in id order */
    const char *model_config; /* text of config.json; NULL when the model is unknown */
    struct manifest_train_state state;
    int n_shards;
    struct shard_info *shards;
};

/* The text of the file, its checksum included. *text is malloc'ed. */
tp_status manifest_format(char **text, size_t *size, const struct manifest *m, struct tp_err *err);

/* Parse and check: version, checksum, kind and range of every field, names that are valid and
 * unique, each shard once. Everything is allocated in the arena. Besides that and what it returns,
 * it needs at most 64 MiB, whatever the text is.
 * TP_E_CORRUPT: damaged, or written by a newer version; the message says which. */
tp_status manifest_parse(struct manifest *out, const struct json_scan_input *in,
                         struct arena *arena, struct tp_err *err);

#endif
