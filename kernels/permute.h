/*
 * kernels/permute.h - rows of a mixture of experts, sorted by expert and back. Each row is there
 * per_row times, once for each of its experts: copy i is of row i / per_row.
 */
#ifndef KERNELS_PERMUTE_H
#define KERNELS_PERMUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/dtype.h"

/* Sort n copies by their experts; copies of one expert stay in their order. */
struct permute_sort {
    int32_t *offsets;      /* [experts + 1]: expert e has rows offsets[e] to offsets[e + 1] - 1 */
    int32_t *place;        /* [n] the sorted row of copy i */
    int32_t *source;       /* [n] the copy in sorted row j */
    const int32_t *chosen; /* [n] the expert of copy i */
    int64_t n;
    int experts;
};

/* What a rank that has some of the experts exchanges with the ranks that have the others.
 * all_offsets: the offsets of a struct permute_sort of every rank, [size][experts + 1]; rank r has
 * experts r * experts / size and following. Of this rank's sorted copies, rows send[r] to send[r +
 * 1] - 1 are for rank r; what rank r has for it gets to rows recv[r] to recv[r + 1] - 1, sorted by
 * expert. So these rows are size * experts / size groups, and groups[] has the offsets of each. */
struct permute_dispatch {
    int32_t *send, *recv; /* [size + 1] */
    int32_t *groups;      /* [experts + 1] */
    const int32_t *all_offsets;
    int size, rank, experts;
};

/* y[n][cols]: sorted row j is row source[j] / per_row of x; both are `type`. */
struct permute_rows {
    void *y;
    const void *x;
    enum dtype type;
    const int32_t *source;
    int64_t n, cols;
    int per_row;
};

/* y[rows][cols] (+)= for row r the sum over its copies i of weights[i] * x[place[i]], in their
 * order; without weights each is 1. add: to what is in y. */
struct permute_sum {
    void *y;       /* `y_type` */
    const void *x; /* `x_type` */
    const int32_t *place;
    const float *weights; /* [rows * per_row], or NULL */
    int64_t rows, cols;
    int per_row;
    bool add;
    enum dtype y_type, x_type; /* f32, or bf16 where the device keeps_bf16 (kernels/ops.h) */
};

/* Sorted row j has y = w f(hidden) with f linear and w = weights[source[j]] (without source,
 * weights[j]). dhidden, the gradient of hidden if w were 1, and hidden are multiplied by w, and the
 * same element of dweights gets the gradient of w, the product of both rows before that. */
struct permute_weight_backward {
    float *dweights; /* [n], as weights */
    void *dhidden;   /* [n][cols], `dhidden_type` */
    void *hidden;    /* [n][cols], `type` */
    enum dtype type;
    const float *weights; /* [n] */
    const int32_t *source;
    int64_t n, cols;
    const int32_t *count;    /* device memory: how many of the n rows there are; NULL: all */
    enum dtype dhidden_type; /* f32, or `type` where the device keeps_bf16 (kernels/ops.h) */
};

#endif
