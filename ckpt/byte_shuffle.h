/*
 * ckpt/byte_shuffle.h - the byte shuffle of HDF5: byte j of element i goes to place j * n + i.
 */
#ifndef CKPT_BYTE_SHUFFLE_H
#define CKPT_BYTE_SHUFFLE_H

#include <stdint.h>

/* Shuffle n elements of elem_bytes (1, 2, 4 or 8). The buffers do not overlap. */
void byte_shuffle(unsigned char *out, const unsigned char *in, int64_t n, int elem_bytes);

/* The inverse for the first n of `all` elements. */
void byte_unshuffle(unsigned char *out, const unsigned char *in, int64_t n, int64_t all,
                    int elem_bytes);

#endif
