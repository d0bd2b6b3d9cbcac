/*
 * reshard/plan.h - inside of the engine: what plan.c makes, window.c cuts and execute.c runs.
 */
#ifndef RESHARD_PLAN_H
#define RESHARD_PLAN_H

#include "reshard/engine.h"
#include "reshard/region_index.h"

struct move_plan {
    struct move move;               /* as given; its arrays are borrowed */
    struct region_index *from, *to; /* regions by tensor and place */
    int64_t *first_window;          /* [n_tensors + 1] windows are numbered through all tensors */
    int64_t begin, end;             /* the windows of this process */
    int jobs;                       /* workers: move.jobs, or fewer when memory is short */
    int64_t worker_bytes;           /* buffer of one */
    int most_from, most_to;         /* regions of the tensor that has the most */
    struct move_stats stats;
    const struct move_watch *watch;
};

/*
 * A window: a range of a tensor that is one contiguous run in the tensor's row-major order (leading
 * axes single indices, one axis in a range, trailing axes whole), so that its meet with any region
 * is one contiguous run in that region too. Trimmed to the rows that the target wants.
 */
struct window {
    int tensor;
    struct box box;
    int n_from, n_to;
    int *from, *to; /* positions in the indexes; the owner's, with room for most_from, most_to */
};

/* Bytes of buffer that a window needs for each of its elements. */
int64_t window_need(enum dtype from, enum dtype to);

/* Elements of the largest window of a tensor that fits a worker's buffer; 0: not even one does. */
int64_t window_elements(const struct move_plan *p, int tensor);

/* Fill in window number k (w->from and w->to are given). n_to = 0: nothing of it is wanted. */
void window_get(const struct move_plan *p, int64_t k, struct window *w);

/* Bytes that a window moves. */
void window_bytes(const struct move_plan *p, const struct window *w, int64_t *read,
                  int64_t *written);

#endif
