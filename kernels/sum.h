/*
 * kernels/sum.h - sums of whole arrays, in an order that does not depend on the layout.
 */
#ifndef KERNELS_SUM_H
#define KERNELS_SUM_H

#include <stdint.h>

enum { SUM_LEVELS_MAX = 24 };

/* y[r][c] += x[r][c]; ldy and ldx floats from one row to the next. With ldx 0 each row of y gets
 * the same row of x; with ldy 0 all rows of x are added to one row of y, in their order. With one
 * row neither matters. */
struct sum_add {
    float *y;
    const float *x;
    int64_t rows, cols, ldy, ldx;
};

/* out[i] = the sum over s < count of parts[s * step + i], for i < n, along the binary tree of
 * kernels/cpu/tree_reduce.h. out may be parts. */
struct sum_tree {
    float *out;
    const float *parts;
    int count;
    int64_t step, n;
};

/* to[i] = x[i] + level[0][i] + .. + level[n_levels - 1][i] for i < n, added from the left. to may
 * be x. */
struct sum_levels {
    float *to;
    const float *x;
    int n_levels;
    const float *level[SUM_LEVELS_MAX];
    int64_t n;
};

/* out[i] = in[i * size] + .. + in[i * size + size - 1] for i < n, added from the left in double.
 * out may be in. */
struct sum_doubles {
    double *out;
    const double *in;
    int64_t n, size;
};

/* *out = the sum of in[n] by halves, in double; n is a power of two. */
struct sum_halves {
    double *out;
    const double *in;
    int64_t n;
};

#endif
