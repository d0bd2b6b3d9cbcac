/*
 * kernels/scale.h - multiply by a number.
 */
#ifndef KERNELS_SCALE_H
#define KERNELS_SCALE_H

#include <stdint.h>

/* x[n] *= by, in f32. */
struct scale {
    float *x;
    int64_t n;
    float by;
};

#endif
