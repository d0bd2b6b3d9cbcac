/*
 * kernels/grouped_gemm.h - a matrix product for each group of rows, such as the rows of an expert.
 * The groups' sizes are in device memory, so the host need not know them.
 */
#ifndef KERNELS_GROUPED_GEMM_H
#define KERNELS_GROUPED_GEMM_H

#include <stdint.h>

#include "kernels/gemm.h"

/* Group g has rows offsets[g] to offsets[g + 1] - 1 and a matrix of its own.
 *
 * axis GEMM_M: of A and C the group's rows, of B the matrix b + g * step. `product.m` is not read.
 * axis GEMM_K: of A, which is transposed, and of B the group's rows; C is the matrix c + g * step,
 * all of it also when the group is empty. `product.k` is not read.
 *
 * product.batch is not used. */
struct grouped_gemm {
    struct gemm product;
    enum gemm_axis axis;
    int groups;
    int64_t step;           /* elements from one group's matrix to the next */
    const int32_t *offsets; /* [groups + 1] */
};

#endif
