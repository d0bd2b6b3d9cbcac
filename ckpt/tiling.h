/*
 * ckpt/tiling.h - whether the boxes that the shards of a step store hold each element of each
 * tensor exactly once. Only the indexes of the shards are needed, no payload.
 */
#ifndef CKPT_TILING_H
#define CKPT_TILING_H

#include "ckpt/manifest.h"
#include "core/err.h"

struct tiling;

/* Begin without boxes. dir and m are borrowed. */
tp_status tiling_begin(struct tiling **out, const char *dir, const struct manifest *m,
                       struct tp_err *err);
void tiling_end(struct tiling *t);

/* Add the boxes of shard number `shard` of the manifest, whose index is chunks[n]
 * (shard_chunks). */
tp_status tiling_add(struct tiling *t, int shard, const struct chunk_entry *chunks, int64_t n,
                     struct tp_err *err);

/* Check a tensor, when all shards have been added. TP_E_CORRUPT: two boxes overlap, or there are
 * too few elements; the message names tensor, boxes and files. */
tp_status tiling_check(struct tiling *t, int tensor, struct tp_err *err);

#endif
