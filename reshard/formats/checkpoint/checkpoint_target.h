/*
 * reshard/formats/checkpoint/checkpoint_target.h - a checkpoint that is being written: what
 * checkpoint_target.c (plan, endpoint), target_resume.c and target_shards.c share. Inside this
 * folder only; checkpoint.h is for others.
 */
#ifndef RESHARD_FORMATS_CHECKPOINT_CHECKPOINT_TARGET_H
#define RESHARD_FORMATS_CHECKPOINT_CHECKPOINT_TARGET_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/shard_pack.h"
#include "core/arena.h"
#include "core/page_pool.h"
#include "layout/stored_box.h"
#include "reshard/formats/checkpoint/checkpoint.h"

struct checkpoint_target {
    struct reshard_endpoint endpoint;
    struct arena arena;
    const struct layout *layout;
    struct stored_box *boxes; /* ordered by rank; extent i is box i */
    struct reshard_extent *extents;
    enum dtype *dtypes;
    struct shard_writer **writers;      /* [world] NULL: the rank has nothing to write */
    struct shard_read_back **read_back; /* [world] of the writers; NULL: nothing is suspect */
    struct digest *digests;             /* [tensors] after checkpoint_target_finish, on rank 0 */
    int world;
    struct comm_control *control;
    bool *mine;                 /* [boxes] this process writes the box; NULL: all of them share */
    int *owners;                /* [world] the process that writes the shard, -1: there is none;
                                   NULL without `mine` */
    bool stops;                 /* checkpoint_target_stops */
    struct shard_packer packer; /* its level is 0: nothing is compressed */
    struct page_pool pool;      /* of the chunks of all writers */
    const char *dir;            /* where the shards are; in the arena */
    uint64_t *saved;            /* [SHARD_PACK_SAVED_WORDS] where incomplete chunks are saved */
    int64_t stored_bytes;       /* after checkpoint_target_finish */
};

/* TP_E_STOPPED: the program was asked to stop, and this target ends then. */
tp_status checkpoint_target_check_stop(const struct checkpoint_target *t, struct tp_err *err);

/* target_owners.c: give each shard to one process, which alone writes it. */
tp_status checkpoint_target_divide(struct checkpoint_target *t, struct tp_err *err);

/* The same when no process has been chosen: true of all. */
bool checkpoint_target_is_mine(const struct checkpoint_target *t, int rank);

/* After every process has finished its shards, of which `found` has those of this process, and
 * t->digests and t->stored_bytes their sums: all processes get all of `found`, and rank 0 the
 * digests and bytes of all. Collective. */
tp_status checkpoint_target_combine(struct checkpoint_target *t, struct shard_info *found,
                                    struct tp_err *err);

/* How many chunks extent i has. */
int64_t checkpoint_target_box_chunks(const struct checkpoint_target *t, int i);

/* ---- target_resume.c: what an interrupted run wrote is read back ---- */

extern const struct reshard_resumable checkpoint_target_resumable;

/* The endpoint's `suspects` and `read`. */
bool checkpoint_target_suspects(const void *ctx, int extent, const struct box *run);
tp_status checkpoint_target_read(void *ctx, int extent, const struct box *run, void *buf,
                                 struct tp_err *err);

/* Nothing is suspect any more. */
void checkpoint_target_trust(void *ctx);

#endif
