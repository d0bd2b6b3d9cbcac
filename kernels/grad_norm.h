/*
 * kernels/grad_norm.h - the norm of the gradients and the factor that clips them. Every number
 * stays in device memory; sums are taken in double, in an order that does not depend on the number
 * of threads.
 */
#ifndef KERNELS_GRAD_NORM_H
#define KERNELS_GRAD_NORM_H

#include <stdint.h>

/* x[n] of one tensor. */
struct grad_norm_tensor {
    const float *x;
    int64_t n;
};

/* A GPU sums the squares of so many tensors with one kernel. */
enum { GRAD_NORM_TOGETHER = 480 };

/* out[i] = the sum of squares of tensor i. The list is in host memory and is read before the call
 * returns. */
struct grad_norm_squares {
    double *out; /* [n_tensors] */
    const struct grad_norm_tensor *tensors;
    int n_tensors;
};

/* out[r] = the sum of squares of row r of x[rows][cols]. */
struct grad_norm_squares_rows {
    double *out;
    const float *x;
    int64_t rows, cols;
};

/* *norm = sqrt(*squares). *scale = clip / (norm + 1e-6) where that is below 1, else 1; clip 0: no
 * clipping. */
struct grad_norm_clip {
    const double *squares;
    double clip;
    double *norm, *scale;
};

#endif
