/*
 * reshard/formats/safetensors/mxfp4.h - weights in MXFP4, as gpt-oss is published.
 *
 * Elements are e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, two in a byte, the low half
 * first; 32 of them share a scale, which is a power of two (OCP Microscaling Formats 1.0). What is
 * stored is [matrices][rows][groups][16], and [matrices][rows][groups] scales. The weight is
 * [matrices][32 groups][rows]: each matrix is transposed, as by transformers'
 * convert_moe_packed_tensors. Each product is exact in bf16.
 */
#ifndef RESHARD_FORMATS_SAFETENSORS_MXFP4_H
#define RESHARD_FORMATS_SAFETENSORS_MXFP4_H

#include <stdint.h>

enum { MXFP4_GROUP = 32, MXFP4_GROUP_BYTES = MXFP4_GROUP / 2 };

/* What is stored of a weight. */
struct mxfp4_blocks {
    int64_t matrices, rows, groups;
};

/* A part of the weight: `count` elements from `first` on, of each of some stored rows. */
struct mxfp4_part {
    int64_t matrix, row, rows;
    int64_t first, count;
};

/* The largest part with which the n elements of the weight from `at` on begin. They are contiguous
 * in the weight, and so is the part. */
struct mxfp4_part mxfp4_part_of(const struct mxfp4_blocks *b, int64_t at, int64_t n);

/* Stored rows in memory. */
struct mxfp4_rows {
    const unsigned char *blocks, *scales; /* of the first group */
    int64_t block_stride, scale_stride;   /* bytes from one row to the next */
    int64_t rows;
    int64_t skip, count; /* elements of a row: before the first one, and how many */
};

/* Decode rows to bf16 and transpose them: element i of row k goes to to[i * stride + k]. `to` may
 * have any alignment. */
void mxfp4_decode(void *to, int64_t stride, const struct mxfp4_rows *r);

#endif
