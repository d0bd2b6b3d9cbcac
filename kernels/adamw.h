/*
 * kernels/adamw.h - the optimizer's elementwise update (Loshchilov and Hutter 2019) and the sums it
 * needs.
 */
#ifndef KERNELS_ADAMW_H
#define KERNELS_ADAMW_H

#include <stdint.h>

/* In double, so that 1 - beta is that of the decimal number; the arithmetic is in float. */
struct adamw {
    double lr, beta1, beta2, eps, weight_decay; /* weight_decay 0 for norms and biases */
    double correction1, correction2;            /* 1 - beta^t */
    double grad_scale;                          /* of clipping */
};

/* One step, in f32: p *= 1 - lr * weight_decay; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
 * p -= lr * (m / c1) / (sqrt(v / c2) + eps), g = grad * grad_scale. When p_bf16 is not NULL it gets
 * p rounded. */
void adamw_step(float *p, float *m, float *v, const float *grad, uint16_t *p_bf16, int64_t n,
                const struct adamw *h);

/* Sum of squares in double; the same for any number of threads. */
double sum_squares(const float *x, int64_t n);

/* out[r] = sum of squares of row r of x[rows][cols]. */
void sum_squares_rows(double *out, const float *x, int64_t rows, int64_t cols);

#endif
