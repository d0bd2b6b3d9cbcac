/*
 * trainer/data_parallel/pairwise_sum.h - the gradients of a step's gradient groups are added along
 * a binary tree while they are computed. The buffers are the digits of a binary counter: group i is
 * added to digit 0, that sum to digit 1, and so on while digits are set. 2^n groups need n buffers
 * in addition to the buffer for the sum. All set digits are added in one pass over memory.
 */
#ifndef TRAINER_DATA_PARALLEL_PAIRWISE_SUM_H
#define TRAINER_DATA_PARALLEL_PAIRWISE_SUM_H

#include <stdint.h>

#include "kernels/ops.h"

enum { PAIRWISE_LEVELS_MAX = SUM_LEVELS_MAX };

/* The elements at .. at + n - 1 of every buffer. */
struct pairwise_range {
    int64_t at, n;
};

struct pairwise_sum {
    float *sum; /* of all groups, after the last of them */
    int levels; /* log2 of the groups of a step */
    float *level[PAIRWISE_LEVELS_MAX];
};

/* The buffer in which a group should be computed to avoid a copy: digit 0 if it is not set, else
 * the buffer for the sum. */
float *pairwise_sum_place(const struct pairwise_sum *f, int64_t group);

/* Add x[r.n], the elements r of group number `group` of a step. x may be the elements r of the
 * buffer that pairwise_sum_place returns. */
void pairwise_sum_add(const struct pairwise_sum *f, struct pairwise_range r, int64_t group,
                      const float *x, const struct kernel_queue *k);

#endif
