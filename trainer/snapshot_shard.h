/*
 * trainer/snapshot_shard.h - what a rank saves: its boxes of the checkpoint, and the shard file
 * that is written from the copies of them.
 */
#ifndef TRAINER_SNAPSHOT_SHARD_H
#define TRAINER_SNAPSHOT_SHARD_H

#include "ckpt/shard.h"
#include "core/arena.h"
#include "layout/stored_box.h"

struct snapshot_shard {
    const struct layout *layout; /* borrowed */
    int rank;
    int zstd;                  /* level of the compression, 0: none */
    int threads;               /* of the host, that this rank may use; at least 1 */
    struct stored_box *boxes;  /* [n_boxes] of all ranks */
    int n_boxes, first, n_own; /* this rank's follow each other */
};

/* Fill in the boxes, from the arena; the members before them are set. *n_bytes: what the copies of
 * this rank's boxes take, in the order of the boxes, each aligned as buffer_pool_take does it. */
tp_status snapshot_shard_plan(struct snapshot_shard *s, int64_t *n_bytes, struct arena *arena,
                              struct tp_err *err);

/* Upper estimate of the bytes that compression needs beside the copies, which have state_bytes.
 * threads is 0 where it is not known. */
int64_t snapshot_shard_compress_bytes(int level, int threads, int64_t state_bytes);

/* Write the shard in folder dir from the copies. *out: the writer, finished, for the caller to
 * close; NULL without an error if this rank has nothing to save. */
tp_status snapshot_shard_write(struct shard_writer **out, struct shard_info *info,
                               const struct snapshot_shard *s, char *copies, const char *dir,
                               struct tp_err *err);

#endif
