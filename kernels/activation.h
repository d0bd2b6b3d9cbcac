/*
 * kernels/activation.h - the activation functions of MLPs without a gate (kernels/gated.h has those
 * with one), element by element:
 *
 *     GELU_TANH   u / 2 (1 + tanh(sqrt(2 / pi) (u + 0.044715 u^3))), GPT-2's "gelu_new"
 *     GELU_ERF    u / 2 (1 + erf(u / sqrt(2))), "gelu" in config.json (Hendrycks and Gimpel 2016)
 *     RELU        max(u, 0), OPT's. A NaN stays one, so that it reaches the loss.
 */
#ifndef KERNELS_ACTIVATION_H
#define KERNELS_ACTIVATION_H

#include <stdint.h>

#include "layout/dtype.h"

enum activation_kind { ACTIVATION_GELU_TANH, ACTIVATION_GELU_ERF, ACTIVATION_RELU };

/* y[n] is `type` (f32 or bf16), u[n] `in_type`: f32, or bf16 where type is bf16 and the device
 * keeps_bf16 (kernels/ops.h). */
struct activation_forward {
    void *y;
    enum dtype type;
    const void *u;
    int64_t n;
    enum dtype in_type;
    enum activation_kind kind;
};

/* du (`type`; may be u itself where that has the same type) from dy and u (`in_type`, as above). */
struct activation_backward {
    void *du;
    enum dtype type;
    const void *dy, *u;
    int64_t n;
    enum dtype in_type;
    enum activation_kind kind;
};

#endif
