/*
 * kernels/relu.h - OPT's activation function: y = max(u, 0). A NaN stays one, so that it reaches
 * the loss.
 */
#ifndef KERNELS_RELU_H
#define KERNELS_RELU_H

#include <stdint.h>

#include "layout/dtype.h"

/* y[n] is `type` (f32 or bf16), u[n] `in_type`: f32, or bf16 where type is bf16 and the device
 * keeps_bf16 (kernels/ops.h). */
struct relu_forward {
    void *y;
    enum dtype type;
    const void *u;
    int64_t n;
    enum dtype in_type;
};

/* du (`type`; may be u itself where that has the same type) from dy and u (`in_type`, as above): dy
 * where u is above 0, and 0 elsewhere. */
struct relu_backward {
    void *du;
    enum dtype type;
    const void *dy, *u;
    int64_t n;
    enum dtype in_type;
};

#endif
