/*
 * kernels/geglu.h - the gated activation y = gelu(gate) * up (Shazeer 2020) with the gelu of
 * kernels/gelu.h. gate and up are f32 with a row stride ld, as in kernels/swiglu.h.
 */
#ifndef KERNELS_GEGLU_H
#define KERNELS_GEGLU_H

#include <stdint.h>

#include "layout/dtype.h"

/* y[rows][cols], dense, `type` (f32 or bf16). */
struct geglu_forward {
    void *y;
    enum dtype type;
    const float *gate, *up;
    int64_t ld, rows, cols;
};

/* dgate and dup (`type`, stride ld; may be gate and up themselves where type is f32) from dy (f32,
 * dense). */
struct geglu_backward {
    void *dgate, *dup;
    enum dtype type;
    const float *dy, *gate, *up;
    int64_t ld, rows, cols;
};

#endif
