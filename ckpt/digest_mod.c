/* ckpt/digest_mod.c - see ckpt/digest_mod.h. */
#include "ckpt/digest_mod.h"

#include <pthread.h>

/* The first 61 bits of the fractional parts of the square roots of 2 and 3. */
static const uint64_t point[DIGEST_POINTS] = { 0x0d413cccfe779921, 0x176cf5d0b09954e7 };

/* r_p^(2^k); computed once and constant from then on. */
static uint64_t square[DIGEST_POINTS][64];

uint64_t digest_mod_add(uint64_t a, uint64_t b)
{
    uint64_t s = a + b;

    return s >= DIGEST_PRIME ? s - DIGEST_PRIME : s;
}

/* 2^61 is 1. */
uint64_t digest_mod_reduce(unsigned __int128 x)
{
    uint64_t s =
        (uint64_t)(x & DIGEST_PRIME) + (uint64_t)((x >> 61) & DIGEST_PRIME) + (uint64_t)(x >> 122);

    s = (s & DIGEST_PRIME) + (s >> 61);
    return s >= DIGEST_PRIME ? s - DIGEST_PRIME : s;
}

uint64_t digest_mod_multiply(uint64_t a, uint64_t b)
{
    return digest_mod_reduce((unsigned __int128)a * b);
}

static void make_squares(void)
{
    for (int p = 0; p < DIGEST_POINTS; p++) {
        square[p][0] = point[p];
        for (int k = 1; k < 64; k++)
            square[p][k] = digest_mod_multiply(square[p][k - 1], square[p][k - 1]);
    }
}

uint64_t digest_power(int p, uint64_t exponent)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint64_t result = 1;

    pthread_once(&once, make_squares);
    for (int k = 0; exponent; k++, exponent >>= 1)
        if (exponent & 1)
            result = digest_mod_multiply(result, square[p][k]);
    return result;
}
