/*
 * reshard/formats/safetensors/fp8.h - weights in FP8, with a scale for each block of rows
 * and columns.
 *
 * Elements are e4m3fn (Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433): a
 * sign, four bits of exponent with bias 7, three of mantissa, no infinities. The weight is element
 * times scale, a product in f32 that is rounded to bf16: so do DeepSeek's fp8_cast_bf16.py and
 * transformers' Fp8Dequantize.
 */
#ifndef RESHARD_FORMATS_SAFETENSORS_FP8_H
#define RESHARD_FORMATS_SAFETENSORS_FP8_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/box.h"

/* The types of FP8 in headers of safetensors; FP8_NONE: another type. */
enum fp8_type {
    FP8_NONE,
    FP8_E4M3, /* elements */
    FP8_E8M0, /* scales: 2 to the power of the byte - 127 */
};

/* How the scales of a tensor divide it. The last two axes are a matrix; each has its own scales. */
struct fp8_grid {
    int64_t matrix_rows;            /* of the weight */
    int64_t columns;                /* of the weight */
    int64_t rows, cols;             /* scales of a matrix */
    int64_t block_rows, block_cols; /* elements of the weight that share a scale */
};

/* Find the blocks from both shapes: one scale for all, one for each row, or blocks, of 128 rows or
 * columns, of which the last may be smaller, or of a power of two that divides the axis. False: the
 * scales do not divide the weight so. */
bool fp8_grid_make(struct fp8_grid *g, int ndim, const int64_t *shape, int scale_ndim,
                   const int64_t *scale_shape);

/* A run of a tensor as rows: it begins at a column of a row, and has the same columns of each. Rows
 * are counted through all matrices. */
struct fp8_run {
    int64_t row, rows, col, cols;
};

/* `run` is contiguous in the tensor, and not empty. */
struct fp8_run fp8_run_of(const struct fp8_grid *g, int ndim, const int64_t *shape,
                          const struct box *run);

/* The rows of scales that a run needs: the first, counted through all matrices, and how many. */
void fp8_scale_rows(const struct fp8_grid *g, const struct fp8_run *r, int64_t *first, int64_t *n);

/* Scales of FP8_E8M0 as f32. */
void fp8_scales_from_e8m0(float *to, const unsigned char *from, int64_t n);

/* Decode a run in its buffer: the second half of the buffer has the elements, a byte each, and all
 * of it gets the weights in bf16. It may have any alignment. scales: from row first_scale on. */
void fp8_decode(void *buf, const struct fp8_grid *g, const struct fp8_run *r, const float *scales,
                int64_t first_scale);

#endif
