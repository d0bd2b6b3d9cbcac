/*
 * kernels/swiglu.h - the gated unit y = silu(gate) * up (Shazeer 2020).
 * gate and up are f32 with a row stride (they lie side by side in one buffer).
 */
#ifndef KERNELS_SWIGLU_H
#define KERNELS_SWIGLU_H

#include <stdint.h>

#include "layout/dtype.h"

/* y[rows][cols], dense, `type`. */
void swiglu_forward(void *y, enum dtype type, const float *gate, const float *up, int64_t ld,
                    int64_t rows, int64_t cols);

/* dgate and dup (`type`, stride ld; may be gate and up themselves where type is f32) from dy
 * (f32, dense). */
void swiglu_backward(void *dgate, void *dup, enum dtype type, const float *dy, const float *gate,
                     const float *up, int64_t ld, int64_t rows, int64_t cols);

#endif
