/*
 * kernels/clear.h - zeros in many small arrays at once: the gradients that kernels add to. A launch
 * for each would take a GPU longer than to write them.
 */
#ifndef KERNELS_CLEAR_H
#define KERNELS_CLEAR_H

#include <stdint.h>

struct clear_array {
    float *x;
    int64_t n; /* elements */
};

struct clear {
    const struct clear_array
        *arrays; /* which share no element; read while the operation is queued */
    int n_arrays;
};

#endif
