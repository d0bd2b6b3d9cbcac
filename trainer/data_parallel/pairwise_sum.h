/*
 * trainer/data_parallel/pairwise_sum.h - gradients of a step's gradient groups added along a binary
 * tree as they are computed: a binary counter whose digits are buffers. Group i is added to digit
 * 0, that sum to digit 1, and so on while digits are set. 2^n groups need n buffers besides the one
 * for the sum. All set digits are added in one pass over memory.
 */
#ifndef TRAINER_DATA_PARALLEL_PAIRWISE_SUM_H
#define TRAINER_DATA_PARALLEL_PAIRWISE_SUM_H

#include <stdint.h>

#include "kernels/ops.h"

enum { FOLD_LEVELS_MAX = SUM_LEVELS_MAX };

/* Some elements of every buffer. */
struct range {
    int64_t at, n;
};

struct fold {
    float *sum; /* of all groups, after the last of them */
    int levels; /* log2 of the groups of a step */
    float *level[FOLD_LEVELS_MAX];
};

/* The buffer in which a group is best computed: its digit, if the digit is not set, else the buffer
 * for the sum. */
float *fold_place(const struct fold *f, int64_t leaf);

/* Add x[r.n], the elements r of group number `leaf` of a step. x may be in the buffer that
 * fold_place returns, at its place. */
void fold_add(const struct fold *f, struct range r, int64_t leaf, const float *x,
              const struct kernel_queue *k);

#endif
