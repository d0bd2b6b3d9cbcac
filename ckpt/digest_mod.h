/*
 * ckpt/digest_mod.h - arithmetic modulo 2^61 - 1, and the powers of the points of a digest.
 */
#ifndef CKPT_DIGEST_MOD_H
#define CKPT_DIGEST_MOD_H

#include <stdint.h>

enum { DIGEST_POINTS = 2, DIGEST_PRIME_BITS = 61 };

#define DIGEST_PRIME ((UINT64_C(1) << DIGEST_PRIME_BITS) - 1)

/* Sums and products modulo DIGEST_PRIME, of numbers below it. */
uint64_t digest_mod_add(uint64_t a, uint64_t b);
uint64_t digest_mod_multiply(uint64_t a, uint64_t b);

/* Any number modulo DIGEST_PRIME. */
uint64_t digest_mod_reduce(unsigned __int128 x);

/* r_p^exponent, where r_p is point number p. */
uint64_t digest_power(int p, uint64_t exponent);

#endif
