/*
 * kernels/cpu/onednn_matmul.h - oneDNN's primitive for one shape of bf16 products, by the interface
 * of oneDNN 2 (Debian 12) or 3 (Debian 13, Ubuntu 24.04). Inside kernels/cpu/.
 */
#ifndef KERNELS_CPU_ONEDNN_MATMUL_H
#define KERNELS_CPU_ONEDNN_MATMUL_H

#include <dnnl.h>
#include <stdint.h>

/* A primitive and the matrices that it reads (a, b) and writes (c), whose data each call sets. All
 * zero: none. */
struct onednn_matmul {
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
};

/* C[m][n] (f32) = op(A)[m][k] op(B)[k][n] (bf16), rows lda, ldb and ldc elements apart; op
 * transposes what is stored, where trans_a, trans_b. */
struct onednn_matmul_shape {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t trans_a, trans_b; /* 0 or 1; no padding, so shapes can be compared as bytes */
};

/* Make a primitive for `engine`. Anything but dnnl_success: oneDNN has none that is fast, and *p
 * has to be cleared. */
dnnl_status_t onednn_matmul_make(struct onednn_matmul *p, const struct onednn_matmul_shape *shape,
                                 dnnl_engine_t engine);

/* Free what it has, and make it all zero. */
void onednn_matmul_clear(struct onednn_matmul *p);

#endif
