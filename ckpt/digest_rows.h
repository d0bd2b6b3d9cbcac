/*
 * ckpt/digest_rows.h - the digest of rows of elements with AVX-512 IFMA instructions.
 *
 * A block of a long run and a row of a tensor that is cut by columns are the same here: rows at
 * equal distances in memory, and at equal distances in the tensor.
 */
#ifndef CKPT_DIGEST_ROWS_H
#define CKPT_DIGEST_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/digest_mod.h"

enum { DIGEST_BLOCK = 1024 };

struct digest_rows {
    const void *data;
    int64_t n_rows, stride_bytes;   /* from one row to the next */
    int elem_bytes, n;              /* 1, 2 or 4; elements of a row, at most DIGEST_BLOCK */
    uint64_t factor[DIGEST_POINTS]; /* r_p^(elements of the tensor from one row to the next) */
};

#ifdef __x86_64__

/* Whether this processor has the instructions. */
bool digest_rows_can_run(void);

/* sum[p] = sum over rows i of factor[p]^i (sum over j < n of (v_ij + 1) r_p^j), modulo
 * DIGEST_PRIME, where v_ij is element j of row i. */
void digest_rows_sum(uint64_t sum[DIGEST_POINTS], const struct digest_rows *rows);

#endif

#endif
