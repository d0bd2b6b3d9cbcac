/*
 * kernels/gated.h - the gated activations y = f(gate) * up (Shazeer 2020): SwiGLU with f = silu,
 * GeGLU with f = GELU_TANH of kernels/activation.h. gate and up have a row stride ld, because
 * one buffer holds them side by side. `in_type` is f32, or bf16 where type is bf16 and the device
 * keeps_bf16 (kernels/ops.h).
 */
#ifndef KERNELS_GATED_H
#define KERNELS_GATED_H

#include <stdint.h>

#include "layout/dtype.h"

enum gated_kind { GATED_SWIGLU, GATED_GEGLU };

/* y[rows][cols], dense, `type` (f32 or bf16), from gate and up (`in_type`). */
struct gated_forward {
    enum gated_kind kind;
    enum dtype type;
    void *y;
    const void *gate, *up;
    int64_t ld, rows, cols;
    const int32_t *count; /* device memory: how many of the rows there are; NULL: all */
    enum dtype in_type;
};

/* dgate and dup (`type`, stride ld; may be gate and up themselves where these have the same type)
 * from dy (dense), gate and up (`in_type`). */
struct gated_backward {
    enum gated_kind kind;
    enum dtype type;
    void *dgate, *dup;
    const void *dy, *gate, *up;
    int64_t ld, rows, cols;
    const int32_t *count; /* device memory: how many of the rows there are; NULL: all */
    enum dtype in_type;
};

#endif
