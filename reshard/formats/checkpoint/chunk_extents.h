/*
 * reshard/formats/checkpoint/chunk_extents.h - which chunks of a checkpoint's shards are wanted,
 * and the extents that they make up. Inside reshard/formats/checkpoint/ only.
 */
#ifndef RESHARD_FORMATS_CHECKPOINT_CHUNK_EXTENTS_H
#define RESHARD_FORMATS_CHECKPOINT_CHUNK_EXTENTS_H

#include "ckpt/manifest.h"
#include "reshard/engine/endpoint.h"
#include "reshard/formats/checkpoint/shard_parts.h"

/* A stored box: chunks order[first .. first + n - 1] of a shard, in the order of its storage. */
struct chunk_extents_box {
    int shard;
    int64_t first, n;
};

struct chunk_extents {
    const char *dir; /* of the step, for messages; borrowed, as what follows */
    const struct manifest *m;
    const struct shard_parts *shards;
    const int *number_of;            /* [tensors of the manifest] number in the transfer, or -1 */
    const enum dtype *dtypes;        /* [tensors of the transfer] */
    struct chunk_extents_box *boxes; /* [n] */
    struct reshard_extent *extents;  /* [n] */
    int64_t *order;                  /* wanted chunks of all shards, grouped by box */
    int64_t n_order, room;
    int n;
};

/* Add the wanted chunks of shard `number`, and make an extent of those that belong to one dataset.
 * Chunks that do not fill their box are TP_E_CORRUPT, which names the tensor. *any: whether the
 * shard has a wanted chunk. */
tp_status chunk_extents_add(struct chunk_extents *x, int number, bool *any, struct tp_err *err);

void chunk_extents_free(struct chunk_extents *x);

/* Chunk number i of an extent. */
const struct chunk_entry *chunk_extents_chunk(const struct chunk_extents *x, int extent, int64_t i);

/* Offset of its first byte in the storage of the extent's box. */
int64_t chunk_extents_begin(const struct chunk_extents *x, int extent, int64_t i);

/* The number of the chunk of an extent that contains its byte `at`. */
int64_t chunk_extents_at(const struct chunk_extents *x, int extent, int64_t at);

#endif
