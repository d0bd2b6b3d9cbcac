/* tests/unit/kernels_normal.c - normal numbers that are made in vectors are those that the C
 * library's functions give. */
#include "kernels/normal.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/unit/random.h"

enum { MOST = 3000 };

static const uint64_t STEP = UINT64_C(0x9e3779b97f4a7c15);

static void check(double std, uint64_t key, int64_t first, int64_t n)
{
    float out[MOST + 1];

    out[n] = 7;
    normal_fill(out, n, std, key, first);
    for (int64_t i = 0; i < n; i++) {
        float want = (float)(std * normal_value(key, first + i));

        cr_assert_eq(memcmp(&out[i], &want, sizeof want), 0, "key %llx, index %lld: %a, not %a",
                     (unsigned long long)key, (long long)(first + i), (double)out[i], (double)want);
    }
    cr_assert_eq(out[n], 7.0f);
}

Test(normal, every_bit_is_that_of_the_c_library)
{
    struct rng r = rng_start("normal/bits");

    for (int i = 0; i < 2000; i++)
        check(i % 7 ? 0.02 : rng_real(&r), rng_next(&r), (int64_t)(rng_next(&r) >> 20),
              rng_int(&r, 0, MOST));
}

/* Floats that are subnormal, zero or infinite. */
Test(normal, very_small_and_very_large_numbers_are_rounded_alike)
{
    static const double stds[] = { 0,        0x1p-160, 0x1p-149, 0x1p-140, 0x1p-126,
                                   0x1p-120, 0x1p126,  0x1p127,  0x1p1000, 0x1p-1060 };

    for (size_t i = 0; i < sizeof stds / sizeof *stds; i++)
        check(stds[i], i, 5, MOST);
}

/* x with x ^ (x >> shift) = y. */
static uint64_t without_shift(uint64_t y, int shift)
{
    uint64_t x = y;

    for (int i = 0; i < 64; i += shift)
        x = y ^ (x >> shift);
    return x;
}

/* The inverse of an odd number, modulo 2^64 (Newton's method). */
static uint64_t inverse(uint64_t a)
{
    uint64_t x = a;

    for (int i = 0; i < 6; i++)
        x *= 2 - a * x;
    return x;
}

/* The key whose number `which` (0: u, 1: v) of index 0 has these 53 bits. */
static uint64_t key_for(uint64_t bits, int which)
{
    uint64_t x = without_shift(bits << 11, 31);

    x = without_shift(x * inverse(UINT64_C(0x94d049bb133111eb)), 27);
    x = without_shift(x * inverse(UINT64_C(0xbf58476d1ce4e5b9)), 30);
    return x - (uint64_t)(which + 1) * STEP;
}

/* u = 1 and its neighbours, powers of 2, sqrt(1/2), and the least; v at the zeros, maxima and ends
 * of the cosine. */
Test(normal, the_ends_of_both_functions_are_exact)
{
    const uint64_t one = UINT64_C(1) << 53;
    const uint64_t at[] = { 0,       1,       one - 1,     one / 2,
                            one / 4, one / 8, one / 4 * 3, (uint64_t)(sqrt(0.5) * 0x1p53) };

    cr_assert_eq(normal_value(key_for(one - 1, 0), 0), 0.0, "u is not 1");
    cr_assert_lt(fabs(normal_value(key_for(one / 4, 1), 0)), 1e-14, "v is not a quarter");
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        for (int which = 0; which < 2; which++)
            for (uint64_t d = 0; d < 401; d++)
                check(0.02, key_for((at[i] + d - 200) & (one - 1), which), 0, 1);
}
