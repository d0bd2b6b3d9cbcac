/*
 * kernels/embedding.h - rows of a vocabulary shard. Ids outside [first, first + rows) give zeroes
 * and no gradient: the other ranks of the tensor group have them.
 */
#ifndef KERNELS_EMBEDDING_H
#define KERNELS_EMBEDDING_H

#include <stdint.h>

#include "layout/dtype.h"

/* x[i] = table[ids[i] - first], f32; table[rows][cols] is `type`. */
void embedding_forward(float *x, const void *table, enum dtype type, const int32_t *ids, int64_t n,
                       int64_t first, int64_t rows, int64_t cols);

/* dtable[ids[i] - first] += dx[i], in order of i. */
void embedding_backward(float *dtable, const float *dx, const int32_t *ids, int64_t n,
                        int64_t first, int64_t rows, int64_t cols);

#endif
