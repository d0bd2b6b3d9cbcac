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

enum { PAIRWISE_LEVELS_MAX = SUM_LEVELS_MAX };

/* Some elements of every buffer. */
struct pairwise_range {
    int64_t at, n;
};

struct pairwise_sum {
    float *sum; /* of all groups, after the last of them */
    int levels; /* log2 of the groups of a step */
    float *level[PAIRWISE_LEVELS_MAX];
};

/* The buffer in which a group is best computed: its digit, if the digit is not set, else the buffer
 * for the sum. */
float *pairwise_sum_place(const struct pairwise_sum *f, int64_t group);

/* Add x[r.n], the elements r of group number `group` of a step. x may be in the buffer that
 * pairwise_sum_place returns, at its place. */
void pairwise_sum_add(const struct pairwise_sum *f, struct pairwise_range r, int64_t group,
                      const float *x, const struct kernel_queue *k);

#endif
