/*
 * kernels/cpu/rms_norm.h - one row of an RMS norm, for the norms of rows and of heads. Inside
 * kernels/cpu/.
 */
#ifndef KERNELS_CPU_RMS_NORM_H
#define KERNELS_CPU_RMS_NORM_H

#include <stdint.h>

#include "layout/dtype.h"

/* The norm of x[n], plus the residual if that is not NULL, as struct rms_norm_forward has it.
 * Returns rstd. */
float rms_norm_row(void *y, enum dtype type, float *x, const float *residual, const float *w,
                   int64_t n, float eps);

/* The two halves of it, without a residual: the sum of the squares of x[n], and y with a known
 * rstd. */
double rms_norm_row_squares(const float *x, int64_t n);
void rms_norm_row_scale(float *y, const float *x, const float *w, float rstd, int64_t n);

/* The sum of dy w x, and with it `along` in dx = rstd dy w - along x. */
double rms_norm_row_dot(const float *dy, const float *x, const float *w, int64_t n);
float rms_norm_row_along(const float *dy, const float *x, const float *w, float rstd, int64_t n);

#endif
