/*
 * kernels/gelu.h - GELU (Hendrycks and Gimpel 2016): y = u / 2 (1 + erf(u / sqrt(2))), "gelu" in
 * config.json, or the form with tanh, GPT-2's "gelu_new":
 * y = u / 2 (1 + tanh(sqrt(2 / pi) (u + 0.044715 u^3))).
 */
#ifndef KERNELS_GELU_H
#define KERNELS_GELU_H

#include <stdint.h>

#include "layout/dtype.h"

enum gelu_kind { GELU_TANH, GELU_ERF };

/* y[n] is `type` (f32 or bf16), u[n] `in_type`: f32, or bf16 where type is bf16 and the device
 * keeps_bf16 (kernels/ops.h). */
struct gelu_forward {
    void *y;
    enum dtype type;
    const void *u;
    int64_t n;
    enum dtype in_type;
    enum gelu_kind kind;
};

/* du (`type`; may be u itself where that has the same type) from dy and u (`in_type`, as above). */
struct gelu_backward {
    void *du;
    enum dtype type;
    const void *dy, *u;
    int64_t n;
    enum dtype in_type;
    enum gelu_kind kind;
};

#endif
