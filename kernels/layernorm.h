/*
 * kernels/layernorm.h - layer norm with weight and bias (Ba, Kiros and Hinton 2016), as GPT-2 has
 * it. x, w, b, mean, rstd and gradients are f32; y is `type` (f32 or bf16). rows x cols, row-major.
 */
#ifndef KERNELS_LAYERNORM_H
#define KERNELS_LAYERNORM_H

#include <stdint.h>

#include "layout/dtype.h"

struct layernorm {
    int64_t rows, cols;
    float eps;
    const float *w, *b;
    float *x;
    float *mean, *rstd; /* [rows]: of x, 1 / sqrt(variance + eps) */
};

/* x += residual (when not NULL) + x_bias (one a column, when not NULL), in place: the sum is what
 * the next block's residual is, and what backward needs. Then y = (x - mean) rstd w + b. */
void layernorm_forward(void *y, enum dtype type, const struct layernorm *a, const float *residual,
                       const float *x_bias);

/* dx += d loss / d x, dw and db += theirs, from dy (f32); x, mean and rstd are those of the forward
 * pass. workspace: layernorm_workspace(cols) floats; dw and db are summed over rows in a fixed
 * order that depends on kernels_threads(). */
void layernorm_backward(float *dx, float *dw, float *db, const float *dy, const struct layernorm *a,
                        float *workspace);
int64_t layernorm_workspace(int64_t cols);

#endif
