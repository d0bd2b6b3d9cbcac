/*
 * reshard/engine/plan.h - inside of the engine: what plan.c makes, window.c cuts and execute.c
 * runs.
 */
#ifndef RESHARD_ENGINE_PLAN_H
#define RESHARD_ENGINE_PLAN_H

#include "reshard/engine/extent_index.h"
#include "reshard/engine/transfer.h"

struct transfer_plan {
    struct transfer move;           /* as given; its arrays are borrowed */
    struct extent_index *from, *to; /* extents by tensor and place */
    int64_t *first_tile;            /* [n_tensors + 1] windows are numbered through all tensors */
    int64_t begin, end;             /* the windows of this process */
    int threads;                    /* workers: move.threads, or fewer when memory is short */
    int64_t thread_bytes;           /* buffer of one */
    int most_from, most_to;         /* extents of the tensor that has the most */
    struct transfer_stats stats;
    const struct transfer_watch *watch;
};

/*
 * A window: a range of a tensor that is one contiguous run in the tensor's row-major order (leading
 * axes single indices, one axis in a range, trailing axes whole), so that its meet with any extent
 * is one contiguous run in that extent too. Trimmed to the rows that the target wants.
 */
struct tile {
    int tensor;
    struct box box;
    int n_from, n_to;
    int *from, *to; /* positions in the indexes; the owner's, with room for most_from, most_to */
};

/* Bytes of buffer that a window needs for each of its elements. */
int64_t tile_need(enum dtype from, enum dtype to);

/* Elements of the largest window of a tensor that fits a worker's buffer; 0: not even one does. */
int64_t tile_elements(const struct transfer_plan *p, int tensor);

/* Fill in window number k (w->from and w->to are given). n_to = 0: nothing of it is wanted. */
void tile_get(const struct transfer_plan *p, int64_t k, struct tile *w);

/* Bytes that a window moves. */
void tile_bytes(const struct transfer_plan *p, const struct tile *w, int64_t *read,
                int64_t *written);

#endif
