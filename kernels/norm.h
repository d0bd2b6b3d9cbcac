/*
 * kernels/norm.h - root-mean-square norm (Zhang and Sennrich 2019).
 * x, w, rstd, dx, dw and dy are f32; y is `type` (f32 or bf16). rows x cols, row-major.
 */
#ifndef KERNELS_NORM_H
#define KERNELS_NORM_H

#include <stdint.h>

#include "layout/dtype.h"

/* rstd[r] = 1 / sqrt(mean(x[r]^2) + eps); y = x * rstd * w. When residual is not NULL, x +=
 * residual first, in place (the sum is what the next block's residual is). */
void norm_rms_forward(void *y, enum dtype type, float *rstd, float *x, const float *residual,
                      const float *w, int64_t rows, int64_t cols, float eps);

/* dx += d loss / d x, dw += d loss / d w, from dy (f32). x is the input after the residual was
 * added. workspace: norm_rms_workspace(cols) floats; dw is summed over rows in a fixed order that
 * depends on kernels_threads(). */
void norm_rms_backward(float *dx, float *dw, const float *dy, const float *x, const float *rstd,
                       const float *w, int64_t rows, int64_t cols, float *workspace);
int64_t norm_rms_workspace(int64_t cols);

#endif
