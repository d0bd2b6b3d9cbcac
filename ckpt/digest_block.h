/*
 * ckpt/digest_block.h - the digest of a short run of elements: the inner loop of ckpt/digest.h.
 *
 * There is a variant in plain C, and one for each set of vector instructions that makes it faster.
 * All give the same sums.
 */
#ifndef CKPT_DIGEST_BLOCK_H
#define CKPT_DIGEST_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

enum { DIGEST_POINTS = 2, DIGEST_BLOCK = 1024 };

#define DIGEST_PRIME ((UINT64_C(1) << 61) - 1)

/* The variants, slowest first. */
enum digest_variant { DIGEST_PLAIN, DIGEST_AVX2, DIGEST_IFMA, DIGEST_VARIANTS };

/* Whether this processor has the instructions of a variant; and the fastest that it has. */
bool digest_variant_runs(enum digest_variant v);
enum digest_variant digest_variant_best(void);

/* sum[p] = sum over j < n of (v_j + 1) r_p^j modulo DIGEST_PRIME, where v_j is element j. n is at
 * most DIGEST_BLOCK; elem_bytes is 1, 2 or 4. The processor must have the variant. */
void digest_block_sum(uint64_t sum[DIGEST_POINTS], const void *data, int elem_bytes, int n,
                      enum digest_variant v);

/* r_p^exponent. */
uint64_t digest_power(int p, uint64_t exponent);

/* Sums and products modulo DIGEST_PRIME, of numbers below it. */
uint64_t digest_mod_add(uint64_t a, uint64_t b);
uint64_t digest_mod_multiply(uint64_t a, uint64_t b);

#endif
