/*
 * ckpt/digest_rows.c - see ckpt/digest_rows.h.
 *
 * Eight elements at a time are multiplied by r^j from a table. An IFMA instruction multiplies 52
 * bits by 52 bits and adds either the lower or the upper 52 bits of the product to a lane of 64
 * bits. The powers are split into two limbs, so that the lanes of half a block do not overflow:
 *
 *   Elements of 32 bits take limbs of 52 and 9 bits: three instructions. Lanes stay below 64 * 2^52
 *   and 64 * (2^32 + 2^41). Shorter elements take limbs of 36 and 25 bits: two instructions,
 *   because no product has more than 52 bits.
 *
 * The sums of rows are added by Horner's rule from the last row to the first, lane by lane. So
 * lanes are added up, and divided by the prime, only once for all rows.
 */
#include "ckpt/digest_rows.h"

#ifdef __x86_64__

#include <immintrin.h>
#include <pthread.h>
#include <stdalign.h>

enum { HALF = DIGEST_BLOCK / 2, LANES = 8, WIDE_BITS = 52, NARROW_BITS = 36 };

/* The powers of eight consecutive elements, in two limbs, as AVX-512 loads them. */
struct digest_eight {
    alignas(64) uint64_t limb[DIGEST_POINTS][2][LANES];
};

/* Powers of the points; computed once (make_table) and constant from then on. */
static struct {
    struct digest_eight wide[HALF / LANES];   /* r^j in 52 and 9 bits */
    struct digest_eight narrow[HALF / LANES]; /* r^j in 36 and 25 bits */
    uint64_t prefix[DIGEST_POINTS][HALF + 1]; /* sum of r^0 .. r^(n-1) */
    uint64_t half[DIGEST_POINTS];             /* r^HALF */
} table;

static void split(struct digest_eight *eights, int p, int j, uint64_t power, int bits)
{
    struct digest_eight *e = &eights[j / LANES];

    e->limb[p][0][j % LANES] = power & ((UINT64_C(1) << bits) - 1);
    e->limb[p][1][j % LANES] = power >> bits;
}

static void make_table(void)
{
    for (int p = 0; p < DIGEST_POINTS; p++) {
        const uint64_t point = digest_power(p, 1);
        uint64_t power = 1, sum = 0;

        for (int j = 0; j < HALF; j++) {
            split(table.wide, p, j, power, WIDE_BITS);
            split(table.narrow, p, j, power, NARROW_BITS);
            table.prefix[p][j] = sum;
            sum = digest_mod_add(sum, power);
            power = digest_mod_multiply(power, point);
        }
        table.prefix[p][HALF] = sum;
        table.half[p] = power;
    }
}

bool digest_rows_can_run(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512ifma");
}

#define IFMA        target("avx512f,avx512vl,avx512bw,avx512ifma")
#define IFMA_INLINE __attribute__((IFMA, always_inline)) static inline

/* Those of eight elements whose bit is set; 0 instead of the others, which are not accessed. */
IFMA_INLINE __m512i load(const unsigned char *data, int elem_bytes, __mmask8 which)
{
    if (elem_bytes == 4)
        return _mm512_cvtepu32_epi64(_mm256_maskz_loadu_epi32(which, data));
    if (elem_bytes == 2)
        return _mm512_cvtepu16_epi64(_mm_maskz_loadu_epi16(which, data));
    return _mm512_cvtepu8_epi64(_mm_maskz_loadu_epi8(which, data));
}

/* The sums of one row in lanes: low + (high << WIDE_BITS or NARROW_BITS). */
struct digest_lanes {
    __m512i low[DIGEST_POINTS], high[DIGEST_POINTS], top[DIGEST_POINTS];
};

/* Add eight elements to each of `halves` lanes; they take the same powers. */
IFMA_INLINE void add_eight(struct digest_lanes *lanes, const unsigned char *data, int elem_bytes,
                           int halves, const struct digest_eight *powers, __mmask8 which)
{
    __m512i v[2];

    for (int h = 0; h < halves; h++)
        v[h] = load(data + (size_t)h * HALF * (size_t)elem_bytes, elem_bytes, which);
    for (int p = 0; p < DIGEST_POINTS; p++) {
        __m512i l0 = _mm512_load_si512(powers->limb[p][0]);
        __m512i l1 = _mm512_load_si512(powers->limb[p][1]);

        /* keep them in registers: else gcc loads them again for the second half */
        __asm__("" : "+v"(l0), "+v"(l1));
        for (int h = 0; h < halves; h++) {
            lanes[h].low[p] = _mm512_madd52lo_epu64(lanes[h].low[p], v[h], l0);
            if (elem_bytes == 4)
                lanes[h].high[p] = _mm512_madd52hi_epu64(lanes[h].high[p], v[h], l0);
            lanes[h].top[p] = _mm512_madd52lo_epu64(lanes[h].top[p], v[h], l1);
        }
    }
}

/* x + (high << shift) modulo the prime, for which 2^61 is 1. Below x + 2^48 + 2^61, if high is
 * below 2^48 and shift at least 36. */
IFMA_INLINE __m512i add_shifted(__m512i x, __m512i high, unsigned shift)
{
    const unsigned rest = DIGEST_PRIME_BITS - shift;
    const __m512i mask = _mm512_set1_epi64((INT64_C(1) << rest) - 1);

    x = _mm512_add_epi64(x, _mm512_srli_epi64(high, rest));
    return _mm512_add_epi64(x, _mm512_slli_epi64(_mm512_and_si512(high, mask), shift));
}

/* acc factor + x modulo the prime, at most 2^61 + 6. acc is no larger than that, x is below 2^63,
 * and the factor has limbs of 52 and 9 bits. The sum of all terms stays below 2^64. */
IFMA_INLINE __m512i horner(__m512i acc, const __m512i factor[2], __m512i x)
{
    const __m512i zero = _mm512_setzero_si512(), above = _mm512_srli_epi64(acc, 52);
    __m512i mid, top; /* of weight 2^52, below 2^54, and of weight 2^104, below 2^19 */

    x = _mm512_madd52lo_epu64(x, acc, factor[0]);
    mid = _mm512_madd52hi_epu64(zero, acc, factor[0]);
    mid = _mm512_madd52lo_epu64(mid, acc, factor[1]);
    mid = _mm512_madd52lo_epu64(mid, above, factor[0]);
    top = _mm512_madd52hi_epu64(zero, acc, factor[1]);
    top = _mm512_madd52hi_epu64(top, above, factor[0]);
    top = _mm512_madd52lo_epu64(top, above, factor[1]);
    x = add_shifted(x, mid, 52);
    x = _mm512_add_epi64(x, _mm512_slli_epi64(top, 2 * 52 - DIGEST_PRIME_BITS));
    return _mm512_add_epi64(_mm512_and_si512(x, _mm512_set1_epi64((int64_t)DIGEST_PRIME)),
                            _mm512_srli_epi64(x, DIGEST_PRIME_BITS));
}

IFMA_INLINE uint64_t sum_lanes(__m512i lanes)
{
    const __m512i low = _mm512_and_si512(lanes, _mm512_set1_epi64(UINT32_MAX));

    return digest_mod_reduce(
        (uint64_t)_mm512_reduce_add_epi64(low) +
        ((unsigned __int128)(uint64_t)_mm512_reduce_add_epi64(_mm512_srli_epi64(lanes, 32)) << 32));
}

/* The sums of each half of all rows. A row has n elements, or two halves of n = HALF. */
IFMA_INLINE void sum_halves_of(uint64_t sum[][DIGEST_POINTS], const struct digest_rows *rows,
                               const int elem_bytes, const int halves, int n)
{
    const struct digest_eight *powers = elem_bytes == 4 ? table.wide : table.narrow;
    const unsigned shift = elem_bytes == 4 ? WIDE_BITS : NARROW_BITS;
    const __mmask8 rest = (__mmask8)((1u << n % LANES) - 1);
    __m512i acc[2][DIGEST_POINTS], factor[DIGEST_POINTS][2], ones[DIGEST_POINTS];

    for (int p = 0; p < DIGEST_POINTS; p++) {
        acc[0][p] = acc[1][p] = _mm512_setzero_si512();
        factor[p][0] = _mm512_set1_epi64((int64_t)(rows->factor[p] & ((UINT64_C(1) << 52) - 1)));
        factor[p][1] = _mm512_set1_epi64((int64_t)(rows->factor[p] >> 52));
        /* the 1 that is added to every element */
        ones[p] = _mm512_maskz_set1_epi64(1, (int64_t)table.prefix[p][n]);
    }
    for (int64_t i = rows->n_rows - 1; i >= 0; i--) {
        const unsigned char *row = (const unsigned char *)rows->data + i * rows->stride_bytes;
        struct digest_lanes lanes[2];
        int j = 0;

        for (int h = 0; h < halves; h++)
            for (int p = 0; p < DIGEST_POINTS; p++)
                lanes[h].low[p] = lanes[h].high[p] = lanes[h].top[p] = _mm512_setzero_si512();
        for (; j + LANES <= n; j += LANES)
            add_eight(lanes, row + (size_t)j * (size_t)elem_bytes, elem_bytes, halves,
                      &powers[j / LANES], 0xff);
        if (rest)
            add_eight(lanes, row + (size_t)j * (size_t)elem_bytes, elem_bytes, halves,
                      &powers[j / LANES], rest);
        for (int h = 0; h < halves; h++)
            for (int p = 0; p < DIGEST_POINTS; p++) {
                __m512i high = _mm512_add_epi64(lanes[h].high[p], lanes[h].top[p]);
                __m512i x = _mm512_add_epi64(lanes[h].low[p], ones[p]);

                acc[h][p] = horner(acc[h][p], factor[p], add_shifted(x, high, shift));
            }
    }
    for (int h = 0; h < halves; h++)
        for (int p = 0; p < DIGEST_POINTS; p++)
            sum[h][p] = sum_lanes(acc[h][p]);
}

__attribute__((IFMA)) static void sum_half(uint64_t sum[][DIGEST_POINTS],
                                           const struct digest_rows *rows, int n)
{
    switch (rows->elem_bytes) {
    case 1:
        sum_halves_of(sum, rows, 1, 1, n);
        break;
    case 2:
        sum_halves_of(sum, rows, 2, 1, n);
        break;
    default:
        sum_halves_of(sum, rows, 4, 1, n);
    }
}

/* Both halves at the same time, so that each power is loaded once. */
__attribute__((IFMA)) static void sum_both(uint64_t sum[][DIGEST_POINTS],
                                           const struct digest_rows *rows)
{
    switch (rows->elem_bytes) {
    case 1:
        sum_halves_of(sum, rows, 1, 2, HALF);
        break;
    case 2:
        sum_halves_of(sum, rows, 2, 2, HALF);
        break;
    default:
        sum_halves_of(sum, rows, 4, 2, HALF);
    }
}

void digest_rows_sum(uint64_t sum[DIGEST_POINTS], const struct digest_rows *rows)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const int first = rows->n < HALF ? rows->n : HALF, second = rows->n - first;
    struct digest_rows behind = *rows; /* the second halves */
    uint64_t halves[2][DIGEST_POINTS] = { 0 };

    pthread_once(&once, make_table);
    behind.data = (const unsigned char *)rows->data + (size_t)HALF * (size_t)rows->elem_bytes;
    if (second == HALF) {
        sum_both(halves, rows);
    } else {
        sum_half(&halves[0], rows, first);
        if (second > 0)
            sum_half(&halves[1], &behind, second);
    }
    for (int p = 0; p < DIGEST_POINTS; p++)
        sum[p] = digest_mod_add(halves[0][p], digest_mod_multiply(halves[1][p], table.half[p]));
}

#endif
