/*
 * kernels/gelu.h - GPT-2's activation function "gelu_new" (Hendrycks and Gimpel 2016, the form with
 * tanh): y = u / 2 (1 + tanh(sqrt(2 / pi) (u + 0.044715 u^3))).
 */
#ifndef KERNELS_GELU_H
#define KERNELS_GELU_H

#include <stdint.h>

#include "layout/dtype.h"

/* u[n] is f32, y[n] `type` (f32 or bf16). */
struct gelu_forward {
    void *y;
    enum dtype type;
    const float *u;
    int64_t n;
};

/* du (`type`; may be u itself where type is f32) from dy (f32). */
struct gelu_backward {
    void *du;
    enum dtype type;
    const float *dy, *u;
    int64_t n;
};

#endif
