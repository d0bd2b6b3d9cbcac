/*
 * ckpt/digest_block.c - see ckpt/digest_block.h.
 *
 * Element j is multiplied by r^j from a table. The entries of the table are split into limbs that
 * are so small that the products of half a block fit into a 64-bit lane, so nothing is reduced
 * before the half ends:
 *
 *   plain, AVX2: three limbs of 21 bits. An element of at most 32 bits times a limb has 53 bits,
 * and 2048 of them fit. AVX2 multiplies four elements at a time. IFMA:  AVX-512 multiplies eight
 * elements at a time, with 52 bits by 52 bits. It adds either the lower or the upper 52 bits of the
 * product to a lane. A lane has at most 64 elements of a block, and 2^12 numbers of 52 bits fit.
 * Elements of 32 bits take limbs of 52 and 9 bits: three instructions. Shorter elements take limbs
 * of 36 and 25 bits: two instructions, because no product has more than 52 bits.
 */
#include "ckpt/digest_block.h"

#include <immintrin.h>
#include <pthread.h>
#include <stdalign.h>
#include <string.h>

enum {
    HALF_BITS = 9,
    HALF = 1 << HALF_BITS,
    LIMBS = 3,
    LIMB_BITS = 21,
    WIDE_BITS = 52,
    NARROW_BITS = 36
};

/* The first 61 bits of the fractional parts of the square roots of 2 and 3. */
static const uint64_t point[DIGEST_POINTS] = { 0x0d413cccfe779921, 0x176cf5d0b09954e7 };

/* The powers of eight consecutive elements, in two limbs, as AVX-512 loads them. */
struct digest_eight {
    alignas(64) uint64_t limb[DIGEST_POINTS][2][8];
};

/* Powers of the points; computed once (make_table) and constant from then on. */
static struct {
    uint64_t limb[DIGEST_POINTS][LIMBS][HALF]; /* of r^j */
    struct digest_eight wide[HALF / 8];        /* the same in 52 and 9 bits */
    struct digest_eight narrow[HALF / 8];      /* the same in 36 and 25 bits */
    uint64_t prefix[DIGEST_POINTS][HALF + 1];  /* sum of r^0 .. r^(n-1) */
    uint64_t square[DIGEST_POINTS][64];        /* r^(2^k) */
} table;

uint64_t digest_mod_add(uint64_t a, uint64_t b)
{
    uint64_t s = a + b;

    return s >= DIGEST_PRIME ? s - DIGEST_PRIME : s;
}

/* Any 128-bit number modulo the prime, for which 2^61 is 1. */
static uint64_t reduce(unsigned __int128 x)
{
    uint64_t s =
        (uint64_t)(x & DIGEST_PRIME) + (uint64_t)((x >> 61) & DIGEST_PRIME) + (uint64_t)(x >> 122);

    s = (s & DIGEST_PRIME) + (s >> 61);
    return s >= DIGEST_PRIME ? s - DIGEST_PRIME : s;
}

uint64_t digest_mod_multiply(uint64_t a, uint64_t b)
{
    return reduce((unsigned __int128)a * b);
}

/* ---- the table ---- */

static void split(struct digest_eight *eights, int p, int j, uint64_t power, int bits)
{
    struct digest_eight *e = &eights[j / 8];

    e->limb[p][0][j % 8] = power & ((UINT64_C(1) << bits) - 1);
    e->limb[p][1][j % 8] = power >> bits;
}

static void make_table(void)
{
    const uint64_t mask = (UINT64_C(1) << LIMB_BITS) - 1;

    for (int p = 0; p < DIGEST_POINTS; p++) {
        uint64_t power = 1, sum = 0;

        for (int j = 0; j < HALF; j++) {
            for (int l = 0; l < LIMBS; l++)
                table.limb[p][l][j] = power >> (l * LIMB_BITS) & mask;
            split(table.wide, p, j, power, WIDE_BITS);
            split(table.narrow, p, j, power, NARROW_BITS);
            table.prefix[p][j] = sum;
            sum = digest_mod_add(sum, power);
            power = digest_mod_multiply(power, point[p]);
        }
        table.prefix[p][HALF] = sum;
        table.square[p][0] = point[p];
        for (int k = 1; k < 64; k++)
            table.square[p][k] =
                digest_mod_multiply(table.square[p][k - 1], table.square[p][k - 1]);
    }
}

static void need_table(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_table);
}

uint64_t digest_power(int p, uint64_t exponent)
{
    uint64_t result = 1;

    need_table();
    for (int k = 0; exponent; k++, exponent >>= 1)
        if (exponent & 1)
            result = digest_mod_multiply(result, table.square[p][k]);
    return result;
}

/* ---- plain C ---- */

static uint32_t load(const unsigned char *p, int elem_bytes)
{
    uint32_t v32;
    uint16_t v16;

    switch (elem_bytes) {
    case 1:
        return *p;
    case 2:
        memcpy(&v16, p, 2);
        return v16;
    default:
        memcpy(&v32, p, 4);
        return v32;
    }
}

/* whole[p] += sum of element j times r_p^j, for j from `from` to n - 1 < HALF. */
static void sum_plain(unsigned __int128 whole[DIGEST_POINTS], const unsigned char *data,
                      int elem_bytes, int from, int n)
{
    uint64_t sum[DIGEST_POINTS][LIMBS] = { 0 };

    for (int j = from; j < n; j++) {
        uint64_t v = load(data + (size_t)j * (size_t)elem_bytes, elem_bytes);

        for (int p = 0; p < DIGEST_POINTS; p++)
            for (int l = 0; l < LIMBS; l++)
                sum[p][l] += v * table.limb[p][l][j];
    }
    for (int p = 0; p < DIGEST_POINTS; p++)
        for (int l = 0; l < LIMBS; l++)
            whole[p] += (unsigned __int128)sum[p][l] << (l * LIMB_BITS);
}

/* ---- AVX2 ---- */

__attribute__((target("avx2"), always_inline)) static inline __m256i load4(
    const unsigned char *data, int elem_bytes)
{
    int32_t four;

    if (elem_bytes == 4)
        return _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)data));
    if (elem_bytes == 2)
        return _mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i *)data));
    memcpy(&four, data, 4);
    return _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
}

__attribute__((target("avx2"), always_inline)) static inline int sum_avx2_of(
    unsigned __int128 whole[DIGEST_POINTS], const unsigned char *data, const int elem_bytes, int n)
{
    __m256i acc[DIGEST_POINTS][LIMBS];
    int j = 0;

    memset(acc, 0, sizeof acc);
    for (; j + 4 <= n; j += 4) {
        __m256i v = load4(data + (size_t)j * (size_t)elem_bytes, elem_bytes);

        for (int p = 0; p < DIGEST_POINTS; p++)
            for (int l = 0; l < LIMBS; l++) {
                const __m256i *limb = (const __m256i *)&table.limb[p][l][j];

                acc[p][l] =
                    _mm256_add_epi64(acc[p][l], _mm256_mul_epu32(v, _mm256_loadu_si256(limb)));
            }
    }
    for (int p = 0; p < DIGEST_POINTS; p++)
        for (int l = 0; l < LIMBS; l++) {
            uint64_t lane[4];

            _mm256_storeu_si256((__m256i *)lane, acc[p][l]);
            whole[p] += (unsigned __int128)(lane[0] + lane[1] + lane[2] + lane[3])
                        << (l * LIMB_BITS);
        }
    return j;
}

/* Add all groups of four elements; returns how many elements they have. */
__attribute__((target("avx2"))) static int sum_avx2(unsigned __int128 whole[DIGEST_POINTS],
                                                    const unsigned char *data, int elem_bytes,
                                                    int n)
{
    switch (elem_bytes) {
    case 1:
        return sum_avx2_of(whole, data, 1, n);
    case 2:
        return sum_avx2_of(whole, data, 2, n);
    default:
        return sum_avx2_of(whole, data, 4, n);
    }
}

/* ---- AVX-512 with IFMA ---- */

#define IFMA target("avx512f,avx512ifma,avx512vl")

__attribute__((IFMA, always_inline)) static inline __m512i load8(const unsigned char *data,
                                                                 int elem_bytes)
{
    if (elem_bytes == 4)
        return _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i *)data));
    if (elem_bytes == 2)
        return _mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i *)data));
    return _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)data));
}

/* The sum of eight lanes, each below 2^61. */
__attribute__((IFMA, always_inline)) static inline uint64_t sum_lanes(__m512i lanes)
{
    return (uint64_t)_mm512_reduce_add_epi64(lanes);
}

/* Add groups of eight elements of `halves` halves of a block, which follow one another and take the
 * same powers; returns how many elements of each half they have. Lanes of elements of 4 bytes stay
 * below 64 * 2^52, and below 64 * (2^32 + 2^41). */
__attribute__((IFMA, always_inline)) static inline int sum_ifma_of(
    unsigned __int128 whole[][DIGEST_POINTS], const unsigned char *data, const int elem_bytes,
    const int halves, int n)
{
    const struct digest_eight *eight = elem_bytes == 4 ? table.wide : table.narrow;
    __m512i low[2][DIGEST_POINTS], high[2][DIGEST_POINTS], top[2][DIGEST_POINTS];
    int j = 0;

    for (int h = 0; h < halves; h++)
        for (int p = 0; p < DIGEST_POINTS; p++)
            low[h][p] = high[h][p] = top[h][p] = _mm512_setzero_si512();
    for (; j + 8 <= n; j += 8, eight++) {
        __m512i v[2];

        for (int h = 0; h < halves; h++)
            v[h] = load8(data + (size_t)(h * HALF + j) * (size_t)elem_bytes, elem_bytes);
        for (int p = 0; p < DIGEST_POINTS; p++) {
            __m512i l0 = _mm512_load_si512(eight->limb[p][0]);
            __m512i l1 = _mm512_load_si512(eight->limb[p][1]);

            /* keep them in registers: else gcc loads them again for the second half */
            __asm__("" : "+v"(l0), "+v"(l1));
            for (int h = 0; h < halves; h++) {
                low[h][p] = _mm512_madd52lo_epu64(low[h][p], v[h], l0);
                if (elem_bytes == 4)
                    high[h][p] = _mm512_madd52hi_epu64(high[h][p], v[h], l0);
                top[h][p] = _mm512_madd52lo_epu64(top[h][p], v[h], l1);
            }
        }
    }
    for (int h = 0; h < halves; h++)
        for (int p = 0; p < DIGEST_POINTS; p++)
            whole[h][p] += sum_lanes(low[h][p]) +
                           ((unsigned __int128)sum_lanes(_mm512_add_epi64(high[h][p], top[h][p]))
                            << (elem_bytes == 4 ? WIDE_BITS : NARROW_BITS));
    return j;
}

__attribute__((IFMA)) static int sum_ifma(unsigned __int128 whole[][DIGEST_POINTS],
                                          const unsigned char *data, int elem_bytes, int n)
{
    switch (elem_bytes) {
    case 1:
        return sum_ifma_of(whole, data, 1, 1, n);
    case 2:
        return sum_ifma_of(whole, data, 2, 1, n);
    default:
        return sum_ifma_of(whole, data, 4, 1, n);
    }
}

/* A whole block: both halves at the same time, so that each power is loaded once. */
__attribute__((IFMA)) static void sum_ifma_block(unsigned __int128 whole[2][DIGEST_POINTS],
                                                 const unsigned char *data, int elem_bytes)
{
    switch (elem_bytes) {
    case 1:
        sum_ifma_of(whole, data, 1, 2, HALF);
        break;
    case 2:
        sum_ifma_of(whole, data, 2, 2, HALF);
        break;
    default:
        sum_ifma_of(whole, data, 4, 2, HALF);
    }
}

/* ---- a block ---- */

bool digest_variant_runs(enum digest_variant v)
{
    switch (v) {
    case DIGEST_PLAIN:
        return true;
    case DIGEST_AVX2:
        return __builtin_cpu_supports("avx2") != 0;
    case DIGEST_IFMA:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512ifma");
    default:
        return false;
    }
}

enum digest_variant digest_variant_best(void)
{
    int v = DIGEST_VARIANTS - 1;

    while (!digest_variant_runs((enum digest_variant)v)) /* plain always runs */
        v--;
    return (enum digest_variant)v;
}

/* Half a block. */
static void sum_half(unsigned __int128 whole[][DIGEST_POINTS], const unsigned char *data,
                     int elem_bytes, int n, enum digest_variant v)
{
    int done = 0;

    if (v == DIGEST_AVX2)
        done = sum_avx2(*whole, data, elem_bytes, n);
    else if (v == DIGEST_IFMA)
        done = sum_ifma(whole, data, elem_bytes, n);
    if (done < n)
        sum_plain(*whole, data, elem_bytes, done, n);
}

void digest_block_sum(uint64_t sum[DIGEST_POINTS], const void *data, int elem_bytes, int n,
                      enum digest_variant v)
{
    const unsigned char *bytes = data;
    unsigned __int128 whole[2][DIGEST_POINTS];
    const int first = n < HALF ? n : HALF, second = n - first;

    need_table();
    for (int p = 0; p < DIGEST_POINTS; p++) { /* the 1 that is added to every element */
        whole[0][p] = table.prefix[p][first];
        whole[1][p] = table.prefix[p][second];
    }
    if (v == DIGEST_IFMA && n == DIGEST_BLOCK) {
        sum_ifma_block(whole, bytes, elem_bytes);
    } else {
        sum_half(&whole[0], bytes, elem_bytes, first, v);
        if (second > 0)
            sum_half(&whole[1], bytes + (size_t)HALF * (size_t)elem_bytes, elem_bytes, second, v);
    }
    for (int p = 0; p < DIGEST_POINTS; p++) {
        sum[p] = reduce(whole[0][p]);
        if (second > 0)
            sum[p] = digest_mod_add(
                sum[p], digest_mod_multiply(reduce(whole[1][p]), table.square[p][HALF_BITS]));
    }
}
