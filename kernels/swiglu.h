/*
 * kernels/swiglu.h - the gated activation y = silu(gate) * up (Shazeer 2020). gate and up are f32
 * with a row stride ld, because one buffer holds them side by side.
 */
#ifndef KERNELS_SWIGLU_H
#define KERNELS_SWIGLU_H

#include <stdint.h>

#include "layout/dtype.h"

/* y[rows][cols], dense, `type` (f32 or bf16). */
struct swiglu_forward {
    void *y;
    enum dtype type;
    const float *gate, *up;
    int64_t ld, rows, cols;
};

/* dgate and dup (`type`, stride ld; may be gate and up themselves where type is f32) from dy (f32,
 * dense). */
struct swiglu_backward {
    void *dgate, *dup;
    enum dtype type;
    const float *dy, *gate, *up;
    int64_t ld, rows, cols;
};

#endif
