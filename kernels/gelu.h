/*
 * kernels/gelu.h - the smooth unit of GPT-2, "gelu_new" (Hendrycks and Gimpel 2016, the form with
 * tanh): y = u / 2 (1 + tanh(sqrt(2 / pi) (u + 0.044715 u^3))).
 */
#ifndef KERNELS_GELU_H
#define KERNELS_GELU_H

#include <stdint.h>

#include "layout/dtype.h"

/* u[n] f32, y[n] `type` (f32 or bf16). */
void gelu_forward(void *y, enum dtype type, const float *u, int64_t n);

/* du (`type`, may be u itself where type is f32) from dy (f32). */
void gelu_backward(void *du, enum dtype type, const float *dy, const float *u, int64_t n);

#endif
