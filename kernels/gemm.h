/*
 * kernels/gemm.h - matrix products, row-major; kernels/cpu/gemm.c says which code
 * computes them on the CPU.
 */
#ifndef KERNELS_GEMM_H
#define KERNELS_GEMM_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "layout/dtype.h"

enum gemm_axis { GEMM_NO_AXIS, GEMM_M, GEMM_N, GEMM_K };

/* Several products of one shape. Product i uses a + i step_a, b + i step_b, c + i step_c and
 * bias + i step_bias (steps in elements; 0: all products share it). No element is in two C.
 *
 * By default each product is computed by one thread, so that no result depends on the number of
 * threads: the tensor shards that a rank emulates. With `together` all threads share the products,
 * as they share one: a CPU computes one after the other, a GPU all in one kernel, if it can. Such
 * products have no axis.
 *
 * The last products may be shorter along `axis`: the sizes add up to `total`, and product i has
 * min(size, max(0, total - i * size)). Matrices whose rows run along that axis are dense: their
 * distance between rows is that size too. */
struct gemm_batch {
    int count; /* 0: one product, shared by all threads */
    int64_t step_a, step_b, step_c, step_bias;
    enum gemm_axis axis;
    int64_t total;
    bool together;
};

/* What is done with a product before it is stored, on a device that keeps_bf16 (kernels/ops.h); C
 * is bf16, beta 0, and there is no batch. A GPU does it in the kernel that multiplies, if it can.
 * GELU: C = gelu(gelu_input) (GELU_TANH of kernels/activation.h), where gelu_input is the product
 * with its bias; it is written too, for the backward pass. DGELU: C = the product times the
 * derivative of gelu at gelu_input. */
enum gemm_epilogue { GEMM_EPILOGUE_NONE, GEMM_EPILOGUE_GELU, GEMM_EPILOGUE_DGELU };

/* C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C, then each row of C += bias, which a GPU does
 * in the kernel that multiplies. op is the transpose where trans_* is set.
 * ld*: elements between rows as stored. A and B are `type` (DTYPE_F32 or DTYPE_BF16), C is
 * `c_type`: f32, or bf16 where A and B are bf16 and the device keeps_bf16 (kernels/ops.h). Products
 * are summed in f32. A zero m, n or k is allowed (k = 0 scales C by beta). */
struct gemm {
    bool trans_a, trans_b;
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    float alpha, beta;
    enum dtype type;
    const float *bias;            /* [n]; or NULL. A bf16 C may get it rounded to bf16 */
    const uint16_t *rounded_bias; /* that in bf16, where it is there; else NULL */
    struct gemm_batch batch;
    enum dtype c_type;
    enum gemm_epilogue epilogue;
    void *gelu_input; /* [m,n] bf16, dense; C is dense too */
};

/* Shorten product i of a batch along the batch's axis, and the rows that run along it. */
static inline void gemm_shorten(struct gemm *g, int64_t i)
{
    enum gemm_axis axis = g->batch.axis;
    int64_t *size = axis == GEMM_M ? &g->m : axis == GEMM_N ? &g->n : &g->k;
    int64_t left = g->batch.total - i * *size;

    if (axis == GEMM_NO_AXIS || left >= *size)
        return;
    *size = left > 0 ? left : 0;
    if (axis == (g->trans_a ? GEMM_M : GEMM_K))
        g->lda = *size;
    if (axis == (g->trans_b ? GEMM_K : GEMM_N))
        g->ldb = *size;
    if (axis == GEMM_N)
        g->ldc = *size;
}

/* Product i of a batch, as a product without one. */
static inline struct gemm gemm_product(const struct gemm *all, int64_t i)
{
    const struct gemm_batch *batch = &all->batch;
    struct gemm g = *all;

    gemm_shorten(&g, i);
    g.a = (const char *)g.a + i * batch->step_a * dtype_bytes(g.type);
    g.b = (const char *)g.b + i * batch->step_b * dtype_bytes(g.type);
    g.c = (char *)g.c + i * batch->step_c * dtype_bytes(g.c_type);
    if (g.bias)
        g.bias += i * batch->step_bias;
    if (g.rounded_bias)
        g.rounded_bias += i * batch->step_bias;
    memset(&g.batch, 0, sizeof g.batch);
    return g;
}

#endif
