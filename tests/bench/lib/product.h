/*
 * tests/bench/lib/product.h - a product of a linear layer, as the trainer calls gemm: the rows of
 * each operand are contiguous.
 */
#ifndef TESTS_BENCH_LIB_PRODUCT_H
#define TESTS_BENCH_LIB_PRODUCT_H

#include "kernels/gemm.h"

/* c [m][n] = op(a) op(b), where op(a) is [m][k] and op(b) is [k][n]. */
static inline struct gemm product_of(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                                     const void *a, const void *b, void *c)
{
    return (struct gemm){ .trans_a = trans_a,
                          .trans_b = trans_b,
                          .m = m,
                          .n = n,
                          .k = k,
                          .a = a,
                          .b = b,
                          .c = c,
                          .lda = trans_a ? m : k,
                          .ldb = trans_b ? k : n,
                          .ldc = n,
                          .alpha = 1 };
}

#endif
