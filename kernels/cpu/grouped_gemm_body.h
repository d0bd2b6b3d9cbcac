/*
 * kernels/cpu/grouped_gemm_body.h - the products of kernels/grouped_gemm.h one after the other,
 * compiled as C (grouped_gemm.c) and as CUDA (cuda/grouped_gemm.cu).
 */
#ifndef KERNELS_CPU_GROUPED_GEMM_BODY_H
#define KERNELS_CPU_GROUPED_GEMM_BODY_H

#include "kernels/grouped_gemm.h"

static inline const void *grouped_gemm_rows_from(const struct gemm *g, const void *x,
                                                 int64_t elements)
{
    return (const char *)x + elements * dtype_bytes(g->type);
}

/* The product of one group; offsets: a->offsets, or where they can be read. */
static inline struct gemm grouped_gemm_product(const struct grouped_gemm *a, const int32_t *offsets,
                                               int group)
{
    struct gemm one = a->product;
    int64_t first = offsets[group], n = offsets[group + 1] - first;
    int matrix = a->matrices ? group % a->matrices : group;

    one.a = grouped_gemm_rows_from(&one, one.a, first * one.lda);
    if (a->axis == GEMM_M) {
        one.m = n;
        one.b = grouped_gemm_rows_from(&one, one.b, matrix * a->step);
        one.c = (char *)one.c + first * one.ldc * dtype_bytes(one.c_type);
    } else {
        one.k = n;
        one.b = grouped_gemm_rows_from(&one, one.b, first * one.ldb);
        one.c = (char *)one.c + matrix * a->step * dtype_bytes(one.c_type);
        one.beta = matrix == group ? one.beta : 1;
    }
    return one;
}

#endif
