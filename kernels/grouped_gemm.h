/*
 * kernels/grouped_gemm.h - a matrix product for each group of rows, such as the rows of an expert.
 * The groups' sizes are in device memory, so the host need not know them, unless the device's
 * products need shapes from the host (kernels/ops.h).
 */
#ifndef KERNELS_GROUPED_GEMM_H
#define KERNELS_GROUPED_GEMM_H

#include <stdint.h>

#include "kernels/gemm.h"

/* Group g has rows offsets[g] to offsets[g + 1] - 1.
 *
 * axis GEMM_M: of A and C the group's rows, of B the matrix b + its number * step. `product.m` is
 * not read. axis GEMM_K: of A, which is transposed, and of B the group's rows; C is the matrix c +
 * its number * step, all of it also when the group is empty. `product.k` is not read.
 *
 * Group g uses matrix g % matrices (0: as many as groups); with axis GEMM_K the products of groups
 * that share a matrix are added, the first with product.beta. product.batch is not used,
 * and product.bias is NULL. */
struct grouped_gemm {
    struct gemm product;
    enum gemm_axis axis;
    int groups, matrices;
    int64_t step;           /* elements from one matrix to the next */
    const int32_t *offsets; /* [groups + 1] */
    /* The same numbers in host memory, for ops with reads_rows_on_host, which do not read them
     * after the operation has been queued. Others do not use them. */
    const int32_t *host_offsets;
};

#endif
