/*
 * reshard/engine/transfer_plan.h - what a transfer plan contains: inside reshard/engine/ only.
 * transfer_plan.c makes it, tile.c cuts its tiles, transfer_run.h executes it.
 */
#ifndef RESHARD_ENGINE_TRANSFER_PLAN_H
#define RESHARD_ENGINE_TRANSFER_PLAN_H

#include <pthread.h>

#include "reshard/engine/extent_index.h"
#include "reshard/engine/transfer.h"

struct transfer_plan {
    struct transfer transfer;       /* as given; its arrays are borrowed */
    struct extent_index *from, *to; /* extents by tensor and position */
    int64_t *first_tile;            /* [n_tensors + 1] tiles are numbered through all tensors */
    int64_t begin, end;             /* the tiles of this process */
    int tensors_begin, tensors_end; /* the tensors of these tiles: `from` and `to` have only them */
    int threads;                    /* transfer.threads, or fewer when memory is short */
    int64_t thread_bytes;           /* buffer of one thread */
    int64_t ring_bytes;             /* pinned memory for the device; 0: there is none */
    int max_from, max_to;           /* most extents that any tensor has */
    struct transfer_stats stats;
    int64_t announced, announced_bytes; /* the first tile that was not announced; bytes before it */
    /* [n_tensors * 2] digests of what was read and then cast, so far; NULL: nothing is cast, or the
     * target is partial */
    uint64_t *cast_digests;
    pthread_mutex_t lock; /* guards cast_digests */
    bool narrows; /* something is cast to f16, which the host does: a device does not look for
                     values that f16 does not have */
};

/*
 * A tile: a part of a tensor that is one contiguous run in the tensor's row-major order (leading
 * axes single indices, one axis a range, trailing axes whole). So its overlap with any extent is
 * one contiguous run in that extent too. Trimmed to the rows that the target wants.
 */
struct transfer_tile {
    int tensor;
    struct box box;
    int n_from, n_to;
    int *from, *to; /* positions in the indexes that overlap the tile; the arrays belong to the
                       caller and have room for max_from and max_to */
};

/* Whether processes share the transfer. Then each indexes and proves only the tensors of its
 * tiles. */
bool transfer_is_shared(const struct transfer_plan *p);

/* Number the tiles of all tensors, and give this process its share: a range with about the same
 * bytes as that of every other process, and the tensors of these tiles. A tensor without tiles
 * belongs to one of the processes too. When the transfer is not shared, all of them. */
void transfer_share_make(struct transfer_plan *p);

/* Whether this process is the one that counts tensor t: that with its first tile. */
bool transfer_share_counts(const struct transfer_plan *p, int t);

/* Count splits, merges and copies, and the bytes that are wanted, of the tensors of this process;
 * and add up what the processes of a shared transfer have counted. Collective. */
void transfer_kinds_count(struct transfer_plan *p);
tp_status transfer_kinds_add_up(struct transfer_plan *p, struct tp_err *err);

/* Buffer bytes that a tile needs for each of its elements. */
int64_t transfer_tile_need(enum dtype from, enum dtype to);

/* Elements of the largest tile of a tensor that fits the buffer of a thread; 0: none fits. */
int64_t transfer_tile_elements(const struct transfer_plan *p, int tensor);

/* The tensor of tile number `number`: the last one whose first tile is not after it. */
int transfer_tile_tensor(const struct transfer_plan *p, int64_t number);

/* Keep those of n positions of target extents that this process writes; returns how many. */
int transfer_keep_mine(const struct transfer_plan *p, int tensor, int *positions, int n);

/* Whether this process adds a run that it read to the source's checksums and to the digests of what
 * was cast: of the processes that read it, the one that writes the first of the n target extents
 * that want it, at `positions`. */
bool transfer_counts(const struct transfer_plan *p, int tensor, const int *positions, int n);

/* Allocate a tile's arrays, which transfer_tile_free frees, also after a failure. TP_E_NOMEM. */
tp_status transfer_tile_make(struct transfer_tile *tile, const struct transfer_plan *p,
                             struct tp_err *err);
void transfer_tile_free(struct transfer_tile *tile);

/* Fill in tile number `number`. n_to = 0: the target wants nothing of it. */
void transfer_tile_get(const struct transfer_plan *p, int64_t number, struct transfer_tile *tile);

/* Bytes that a tile reads and writes. */
void transfer_tile_bytes(const struct transfer_plan *p, const struct transfer_tile *tile,
                         int64_t *read, int64_t *written);

#endif
