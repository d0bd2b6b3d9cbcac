/*
 * kernels/bias.h - one number for each column, added to every row, and its gradient. The bias of a
 * product is in kernels/gemm.h. Matrices are rows x cols, row-major, f32 where no type is given.
 */
#ifndef KERNELS_BIAS_H
#define KERNELS_BIAS_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/dtype.h"

/* x += residual, then x[r][c] += bias[c]; either may be NULL. With `block`, x = block + residual +
 * bias instead. */
struct bias_residual_add {
    float *x;
    const float *residual, *bias;
    int64_t rows, cols;
    const uint16_t *block; /* bf16 [rows][cols]; NULL: x has it. Only where the device keeps_bf16
                              (kernels/ops.h) */
};

/* dbias[c] += the sum over rows of dy[r][c]; dy is `type` (f32 or bf16). The order of the sum is
 * fixed for a number of threads.
 *
 * With count > 0 there are that many sums, each computed by one thread: number i over dy + i *
 * dy_step, into dbias + i * dbias_step (steps in elements), which is set to zero before if
 * `clear`. */
struct bias_gradient {
    float *dbias;
    const void *dy;
    enum dtype type;
    int64_t rows, cols;
    int count;
    int64_t dbias_step, dy_step;
    bool clear;
};

#endif
