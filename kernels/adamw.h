/*
 * kernels/adamw.h - AdamW's update of the weights (Loshchilov and Hutter 2019).
 */
#ifndef KERNELS_ADAMW_H
#define KERNELS_ADAMW_H

#include <stdbool.h>
#include <stdint.h>

/* The constants are double, so that 1 - beta is as exact as the decimal number. Elements are
 * computed in float. */
struct adamw_options {
    double beta1, beta2, eps;
};

/* What changes from step to step. It is in device memory, so that a step that was recorded once
 * (device_graph of device/device.h) can run again with the values of the next step. At step t,
 * counted from 1: */
struct adamw_rates {
    float step;  /* lr / (1 - beta1^t) */
    float root;  /* 1 / sqrt(1 - beta2^t) */
    float decay; /* 1 - lr * weight_decay */
};

/* With weight decay p *= rates->decay. Then m = beta1 m + (1 - beta1) g;
 * v = beta2 v + (1 - beta2) g^2; p -= rates->step m / (sqrt(v) rates->root + eps), where
 * g = grad * *grad_scale. */
struct adamw_tensor {
    float *p, *m, *v; /* [n] f32 */
    const float *grad;
    uint16_t *p_bf16; /* receives p rounded to bf16; or NULL */
    int64_t n;
    bool decays; /* with weight decay; norms and biases are without */
};

/* A GPU updates so many tensors with one kernel. */
enum { ADAMW_TOGETHER = 480 };

/* One step of several tensors, which do not overlap. The list is in host memory and is read before
 * the call returns. */
struct adamw_step {
    const struct adamw_tensor *tensors; /* [n_tensors] */
    int n_tensors;
    const double *grad_scale;        /* one number in device memory: the clip factor */
    const struct adamw_rates *rates; /* one, in device memory */
    struct adamw_options options;
};

#endif
