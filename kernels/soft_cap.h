/*
 * kernels/soft_cap.h - soft-capping of scores and logits by tanh (Gemma 2, 2024).
 */
#ifndef KERNELS_SOFT_CAP_H
#define KERNELS_SOFT_CAP_H

#include <stdint.h>

#include "layout/dtype.h"

/* x[n] = cap tanh(x / cap). x is f32, or bf16 where the device keeps_bf16 (kernels/ops.h). */
struct soft_cap {
    void *x;
    int64_t n;
    float cap; /* above 0 */
    enum dtype type;
};

#endif
