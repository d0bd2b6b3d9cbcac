/*
 * kernels/layer_norm.h - layer norm with weight and bias (Ba, Kiros and Hinton 2016), as in
 * GPT-2. Everything is f32 but y, which is `type` (f32 or bf16), and on a device that keeps_bf16
 * (kernels/ops.h) what the structs below say. Matrices are rows x cols, row-major.
 */
#ifndef KERNELS_LAYER_NORM_H
#define KERNELS_LAYER_NORM_H

#include <stdint.h>

#include "layout/dtype.h"

/* x += residual and x[r][c] += x_bias[c] (each where it is not NULL), in place: the sum is the
 * residual of the next block, and what the backward pass needs. Then y = (x - mean) rstd w + b,
 * with mean[r] and rstd[r] = 1 / sqrt(variance + eps) of x.
 *
 * With `block`, x = block + residual + x_bias instead. */
struct layer_norm_forward {
    void *y;
    enum dtype type;
    float *mean, *rstd; /* [rows] */
    float *x;
    const float *residual, *x_bias;
    const float *w, *b; /* [cols] */
    int64_t rows, cols;
    float eps;
    const uint16_t *block; /* bf16 [rows][cols], what a block computed; NULL: x has it. Only where
                              the device keeps_bf16 */
};

/* dx += d loss / d x, dw += d loss / d w, db += d loss / d b, from dy. x, mean and rstd are those
 * after the forward pass. The order in which dw and db are summed over rows is fixed for a number
 * of threads.
 *
 * With blocks > 0 the rows are that many blocks, each computed by one thread: dw + i * block_step
 * and db + i * block_step are set to the sums over block i. */
struct layer_norm_backward {
    float *dx, *dw, *db;
    const void *dy;
    const float *x, *mean, *rstd, *w;
    int64_t rows, cols;
    int blocks;
    int64_t block_step;
    enum dtype dy_type; /* f32, or bf16 where the device keeps_bf16 */
    uint16_t *rounded;  /* [rows][cols] receives dx in bf16, where the device keeps_bf16; or NULL */
    float *dx_sum;      /* [cols] += the sums over rows of dx as it is then, where the device
                           keeps_bf16, with blocks == 0; or NULL */
};

#endif
