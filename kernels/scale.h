/*
 * kernels/scale.h - multiply by a number and add another one.
 */
#ifndef KERNELS_SCALE_H
#define KERNELS_SCALE_H

#include <stdint.h>

/* x[n] = x * factor + plus, in f32. */
struct scale {
    float *x;
    int64_t n;
    float factor, plus;
};

#endif
