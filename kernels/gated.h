/*
 * kernels/gated.h - the gated activations y = f(gate) * up (Shazeer 2020): SwiGLU with f = silu,
 * GeGLU with f = gelu, the one of kernels/gelu.h. gate and up are f32 with a row stride ld, because
 * one buffer holds them side by side.
 */
#ifndef KERNELS_GATED_H
#define KERNELS_GATED_H

#include <stdint.h>

#include "layout/dtype.h"

enum gated_kind { GATED_SWIGLU, GATED_GEGLU };

/* y[rows][cols], dense, `type` (f32 or bf16). */
struct gated_forward {
    enum gated_kind kind;
    enum dtype type;
    void *y;
    const float *gate, *up;
    int64_t ld, rows, cols;
    const int32_t *count; /* device memory: how many of the rows there are; NULL: all */
};

/* dgate and dup (`type`, stride ld; may be gate and up themselves where type is f32) from dy (f32,
 * dense). */
struct gated_backward {
    enum gated_kind kind;
    enum dtype type;
    void *dgate, *dup;
    const float *dy, *gate, *up;
    int64_t ld, rows, cols;
    const int32_t *count; /* device memory: how many of the rows there are; NULL: all */
};

#endif
