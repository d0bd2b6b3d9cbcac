/*
 * kernels/adamw.h - AdamW's update of the weights (Loshchilov and Hutter 2019).
 */
#ifndef KERNELS_ADAMW_H
#define KERNELS_ADAMW_H

#include <stdint.h>

/* The constants are double, so that 1 - beta is as exact as the decimal number. Elements are
 * computed in float. */
struct adamw_options {
    double lr, beta1, beta2, eps;
    double correction1, correction2; /* 1 - beta^t at step t, counted from 1 */
};

/* p *= 1 - lr * weight_decay; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
 * p -= lr (m / correction1) / (sqrt(v / correction2) + eps), where g = grad * *grad_scale. */
struct adamw_tensor {
    float *p, *m, *v; /* [n] f32 */
    const float *grad;
    uint16_t *p_bf16; /* receives p rounded to bf16; or NULL */
    int64_t n;
    double weight_decay; /* 0 for norms and biases */
};

/* One step of several tensors, which do not overlap: a GPU updates many of them with one kernel.
 * The list is in host memory and is read before the call returns. */
struct adamw_step {
    const struct adamw_tensor *tensors; /* [n_tensors] */
    int n_tensors;
    const double *grad_scale; /* one number in device memory: the clip factor */
    struct adamw_options options;
};

#endif
