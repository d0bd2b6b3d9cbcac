/*
 * kernels/bias.h - one number a column, added to every row, and its gradient. rows x cols,
 * row-major; f32 where no type is given.
 */
#ifndef KERNELS_BIAS_H
#define KERNELS_BIAS_H

#include <stdint.h>

#include "layout/dtype.h"

/* x[r][c] += bias[c]. */
void bias_add(float *x, const float *bias, int64_t rows, int64_t cols);

/* x += residual (when not NULL), then bias_add (when bias is not NULL). */
void residual_add(float *x, const float *residual, const float *bias, int64_t rows, int64_t cols);

/* dbias[c] += sum over rows of dy[r][c]; dy is `type` (f32 or bf16). workspace:
 * bias_workspace(cols) floats; the order of the sum is fixed, it depends on kernels_threads(). */
void bias_gradient(float *dbias, const void *dy, enum dtype type, int64_t rows, int64_t cols,
                   float *workspace);
int64_t bias_workspace(int64_t cols);

#endif
