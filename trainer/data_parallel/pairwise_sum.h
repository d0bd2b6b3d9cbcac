/*
 * trainer/data_parallel/pairwise_sum.h - gradients of a step's leaves added along a binary tree as
 * they come: a binary counter whose digits are spans. Leaf i is added to digit 0, that to digit 1,
 * and so on while they are set; 2^n leaves need n spans besides the one that gets the sum. What is
 * set is added in one pass over memory.
 */
#ifndef TRAINER_DATA_PARALLEL_PAIRWISE_SUM_H
#define TRAINER_DATA_PARALLEL_PAIRWISE_SUM_H

#include <stdint.h>

#include "kernels/ops.h"

enum { FOLD_LEVELS_MAX = SUM_LEVELS_MAX };

/* Some elements of every span. */
struct range {
    int64_t at, n;
};

struct fold {
    float *sum; /* of all leaves, after the last of them */
    int levels; /* log2 of the leaves of a step */
    float *level[FOLD_LEVELS_MAX];
};

/* The span that a leaf is best computed in: the digit that it goes to, if it comes first there,
 * else the one for the sum. */
float *fold_place(const struct fold *f, int64_t leaf);

/* Take in x[r.n], leaf number `leaf` of a step's elements r. x may lie in the span that
 * fold_place says, at its place. */
void fold_add(const struct fold *f, struct range r, int64_t leaf, const float *x,
              const struct kernel_queue *k);

#endif
