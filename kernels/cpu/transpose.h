/*
 * kernels/cpu/transpose.h - a matrix transposed, for products that are faster in the other form.
 */
#ifndef KERNELS_CPU_TRANSPOSE_H
#define KERNELS_CPU_TRANSPOSE_H

#include <stdint.h>

enum { TRANSPOSE_LANES = 16 };

/* y[cols][ld_y] = x[rows][ld_x] transposed, elements of 2 or 4 bytes. Rows of y are written in
 * whole vectors: ld_y is at least rows rounded up to TRANSPOSE_LANES, and the excess becomes
 * zero. */
void transpose(void *y, int64_t ld_y, const void *x, int64_t ld_x, int64_t rows, int64_t cols,
               int elem_bytes);

#endif
