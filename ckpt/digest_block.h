/*
 * ckpt/digest_block.h - the digest of short runs of elements: the inner loop of ckpt/digest.h.
 *
 * There is a variant in plain C, and one for each set of vector instructions that makes it faster.
 * All give the same sums.
 */
#ifndef CKPT_DIGEST_BLOCK_H
#define CKPT_DIGEST_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/digest_mod.h"
#include "ckpt/digest_rows.h"

/* The variants, slowest first. */
enum digest_variant { DIGEST_PLAIN, DIGEST_AVX2, DIGEST_IFMA, DIGEST_VARIANTS };

/* Whether this processor has the instructions of a variant; and the fastest that it has. */
bool digest_variant_runs(enum digest_variant v);
enum digest_variant digest_variant_best(void);

/* sum[p] = sum over j < n of (v_j + 1) r_p^j modulo DIGEST_PRIME, where v_j is element j. n is at
 * most DIGEST_BLOCK; elem_bytes is 1, 2 or 4. The processor must have the variant. */
void digest_block_sum(uint64_t sum[DIGEST_POINTS], const void *data, int elem_bytes, int n,
                      enum digest_variant v);

/* sum[p] = sum over rows i of factor[p]^i times the sum of row i, which is digest_block_sum. */
void digest_block_rows(uint64_t sum[DIGEST_POINTS], const struct digest_rows *rows,
                       enum digest_variant v);

#endif
