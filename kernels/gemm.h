/*
 * kernels/gemm.h - matrix products, row-major, by oneDNN (sgemm and bf16 matmul).
 * gemm_ref is the plain loop that tests compare with.
 */
#ifndef KERNELS_GEMM_H
#define KERNELS_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "layout/dtype.h"

/* C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C. op is the transpose where trans_* is set.
 * ld*: elements between rows as stored. A and B are `type` (DTYPE_F32 or DTYPE_BF16), C is f32;
 * products are summed in f32. A zero m, n or k is allowed (k = 0 scales C by beta). */
struct gemm {
    bool trans_a, trans_b;
    int64_t m, n, k;
    const void *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    float alpha, beta;
    enum dtype type;
};

/* TP_E_INTERNAL: the library refused (its status is named). */
tp_status gemm(const struct gemm *g, struct tp_err *err);
void gemm_ref(const struct gemm *g);

#endif
