/*
 * ckpt/shard_index.h - /index of a shard: inside ckpt/ only.
 *
 * Nothing in the file or in the manifest is trusted before it is checked, and memory grows only
 * with entries that are valid.
 */
#ifndef CKPT_SHARD_INDEX_H
#define CKPT_SHARD_INDEX_H

#include "ckpt/shard.h"

/* An open shard; all borrowed. */
struct shard_index_input {
    const struct object *object;
    const char *path;
    const struct shard_info *info; /* the index lies in the file, as the manifest says */
    const struct layout *layout;   /* the manifest's */
};

/* Read and check all entries; the caller frees *chunks. TP_E_CORRUPT: the index is damaged or of
 * another save, an entry is not valid, or entries contradict each other. */
tp_status shard_index_read(struct chunk_entry **chunks, int64_t *n,
                           const struct shard_index_input *in, struct tp_err *err);

#endif
