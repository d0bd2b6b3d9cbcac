/*
 * kernels/cpu/column_sums.h - rows added up by several threads: gradients of what all rows share,
 * biases and the weights of norms. Inside kernels/ only.
 *
 * A thread sums 32 rows at a time, and those sums in turn, so that rounding grows in two short
 * chains rather than one long one. The threads' totals are added in their order.
 */
#ifndef KERNELS_CPU_COLUMN_SUMS_H
#define KERNELS_CPU_COLUMN_SUMS_H

#include <stdint.h>

/* Floats of workspace for rows of `cols`. */
int64_t column_sums_workspace(int64_t cols);

/* Clear what kernels_for's threads will use. */
void column_sums_begin(float *workspace, int64_t cols);

/* Where a thread adds its rows. */
float *column_sums_part(float *workspace, int64_t cols, int thread);

/* A thread has added row r of its lo .. hi - 1. */
void column_sums_next(float *workspace, int64_t cols, int thread, int64_t r, int64_t lo,
                      int64_t hi);

/* to[i] += the sum of column first + i over all rows, for i < n. */
void column_sums_add(float *to, const float *workspace, int64_t cols, int64_t first, int64_t n);

#endif
