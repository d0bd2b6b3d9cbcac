/*
 * kernels/rms_norm.h - root-mean-square norm (Zhang and Sennrich 2019). Everything is f32 but y,
 * which is `type` (f32 or bf16), and on a device that keeps_bf16 (kernels/ops.h) what the structs
 * below say. Matrices are rows x cols, row-major.
 */
#ifndef KERNELS_RMS_NORM_H
#define KERNELS_RMS_NORM_H

#include <stdint.h>

#include "layout/dtype.h"

/* x += residual where it is not NULL, in place: the sum is the residual of the next block. Then
 * y = x * rstd * w with rstd[r] = 1 / sqrt(mean(x[r]^2) + eps).
 *
 * With `block`, x = block + residual instead; x NULL: it is not stored. */
struct rms_norm_forward {
    void *y;
    enum dtype type;
    float *rstd; /* [rows] */
    float *x;
    const float *residual;
    const float *w; /* [cols] */
    int64_t rows, cols;
    float eps;
    const uint16_t *block; /* bf16 [rows][cols], what a block computed; NULL: x has it. Only where
                              the device keeps_bf16 */
};

/* dx += d loss / d x, dw += d loss / d w, from dy. x and rstd are those after the forward pass. The
 * order in which dw is summed over rows is fixed for a number of threads.
 *
 * With blocks > 0 the rows are that many blocks, each computed by one thread: dw + i * block_step
 * is set to the sum over block i. */
struct rms_norm_backward {
    float *dx, *dw;
    const void *dy, *x;
    const float *rstd, *w;
    int64_t rows, cols;
    int blocks;
    int64_t block_step;
    enum dtype dy_type, x_type; /* f32, or bf16 where the device keeps_bf16 */
    uint16_t *rounded; /* [rows][cols] receives dx in bf16, where the device keeps_bf16; or NULL */
};

#endif
