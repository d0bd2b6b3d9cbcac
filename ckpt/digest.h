/*
 * ckpt/digest.h - a fingerprint of a tensor that does not depend on how the tensor is cut.
 *
 * It is a polynomial fingerprint (Karp and Rabin 1987). Let v_i be the bits of element i, in
 * row-major order of the whole tensor, as an unsigned number. Then D = sum (v_i + 1) r^i modulo
 * 2^61 - 1, at two fixed points r: 122 bits. The digest of a tensor is the sum of the digests of
 * any boxes that tile it, so parts can be summed in any order, by rows or by columns. An 8-byte
 * element counts as two 4-byte elements. Two tensors of n elements that differ have the same digest
 * with a probability of about (n / 2^61)^2. It does not protect against deliberate collisions.
 */
#ifndef CKPT_DIGEST_H
#define CKPT_DIGEST_H

#include <stdint.h>

#include "ckpt/digest_block.h"
#include "layout/box.h"

enum { DIGEST_TEXT_MAX = 40 };

struct digest {
    uint64_t d[2]; /* each less than 2^61 - 1 */
};

/* The contribution of `box` to the digest of a tensor of this shape. data is the box, row-major;
 * elem_bytes is 1, 2, 4 or 8. */
struct digest digest_box(const void *data, const struct box *box, int ndim, const int64_t *shape,
                         int elem_bytes);

/* The same by one variant of the inner loop, which this processor must have. */
struct digest digest_box_by(enum digest_variant variant, const void *data, const struct box *box,
                            int ndim, const int64_t *shape, int elem_bytes);

/* *sum += part. */
void digest_add(struct digest *sum, const struct digest *part);

/* 32 hexadecimal digits: d[0], then d[1]. Returns buf. */
char *digest_format(char buf[DIGEST_TEXT_MAX], const struct digest *d);

#endif
