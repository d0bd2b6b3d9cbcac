/*
 * kernels/embedding.h - rows of a part of the vocabulary. Ids outside [first, first + rows) give
 * zeros and no gradient: other ranks of the tensor group have those rows.
 */
#ifndef KERNELS_EMBEDDING_H
#define KERNELS_EMBEDDING_H

#include <stdint.h>

#include "layout/dtype.h"

/* x[i] = table[ids[i] - first], f32; table[rows][cols] is `type`. */
struct embedding_forward {
    float *x;
    const void *table;
    enum dtype type;
    const int32_t *ids; /* [n] */
    int64_t n, first, rows, cols;
};

/* dtable[ids[i] - first] += dx[i]. The CPU adds in order of i, a GPU in an order that depends on
 * the ids only. */
struct embedding_backward {
    float *dtable;
    const float *dx;
    const int32_t *ids;
    int64_t n, first, rows, cols;
};

#endif
