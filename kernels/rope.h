/*
 * kernels/rope.h - rotary position embedding (Su et al. 2021), rotating halves as Hugging Face's
 * Llama does: element i pairs with i + rotary_dim / 2. The elements of a head after the first
 * rotary_dim stay as they are.
 */
#ifndef KERNELS_ROPE_H
#define KERNELS_ROPE_H

#include <stdint.h>

#include "layout/dtype.h"

/* cos_sin[t][0][i] = cos, [t][1][i] = sin of t * theta^(-2i / rotary_dim), i < rotary_dim / 2, for
 * positions first .. first + n_positions - 1; computed in double, stored in float. */
struct rope_table {
    float *cos_sin;
    int64_t first, n_positions, rotary_dim;
    double theta;
};

/* Rotate x in place: rows of `heads` heads, `stride` elements from one row to the next; row r is
 * position r % n_positions. sign +1: forward; -1: backward (the inverse rotation). x is `type`:
 * f32, or bf16 where the device keeps_bf16 (kernels/ops.h). */
struct rope_apply {
    void *x;
    const float *cos_sin;
    int64_t rows, n_positions, heads, head_dim, rotary_dim, stride;
    int sign;
    enum dtype type;
};

#endif
