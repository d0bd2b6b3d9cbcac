/*
 * kernels/soft_cap.h - soft-capping of scores and logits by tanh (Gemma 2, 2024).
 */
#ifndef KERNELS_SOFT_CAP_H
#define KERNELS_SOFT_CAP_H

#include <stdint.h>

/* x[n] = cap tanh(x / cap), in f32. */
struct soft_cap {
    float *x;
    int64_t n;
    float cap; /* above 0 */
};

#endif
