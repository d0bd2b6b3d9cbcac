/*
 * ckpt/digest_block.c - see ckpt/digest_block.h.
 *
 * Element j is multiplied by r^j from a table. The entries of the table are split into three limbs
 * of 21 bits, which are so small that the products of half a block fit into 64 bits: an element of
 * at most 32 bits times a limb has 53 bits, and 2048 of them fit. So nothing is reduced before the
 * half ends. AVX2 multiplies four elements at a time. AVX-512 has limbs of its own
 * (ckpt/digest_rows.h). Other processors than x86-64's have plain C alone, which their compilers
 * vectorise.
 */
#include "ckpt/digest_block.h"

#include <pthread.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { HALF = DIGEST_BLOCK / 2, LIMBS = 3, LIMB_BITS = 21 };

/* Powers of the points; computed once (make_table) and constant from then on. */
static struct {
    uint64_t limb[DIGEST_POINTS][LIMBS][HALF]; /* of r^j */
    uint64_t prefix[DIGEST_POINTS][HALF + 1];  /* sum of r^0 .. r^(n-1) */
    uint64_t half[DIGEST_POINTS];              /* r^HALF */
} table;

static void make_table(void)
{
    const uint64_t mask = (UINT64_C(1) << LIMB_BITS) - 1;

    for (int p = 0; p < DIGEST_POINTS; p++) {
        const uint64_t point = digest_power(p, 1);
        uint64_t power = 1, sum = 0;

        for (int j = 0; j < HALF; j++) {
            for (int l = 0; l < LIMBS; l++)
                table.limb[p][l][j] = power >> (l * LIMB_BITS) & mask;
            table.prefix[p][j] = sum;
            sum = digest_mod_add(sum, power);
            power = digest_mod_multiply(power, point);
        }
        table.prefix[p][HALF] = sum;
        table.half[p] = power;
    }
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

#ifdef __x86_64__

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

#endif

/* ---- a block ---- */

bool digest_variant_runs(enum digest_variant v)
{
    switch (v) {
    case DIGEST_PLAIN:
        return true;
#ifdef __x86_64__
    case DIGEST_AVX2:
        return __builtin_cpu_supports("avx2") != 0;
    case DIGEST_IFMA:
        return digest_rows_can_run();
#endif
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
static void sum_half(uint64_t sum[DIGEST_POINTS], const unsigned char *data, int elem_bytes, int n,
                     bool avx2)
{
    unsigned __int128 whole[DIGEST_POINTS];
    int done = 0;

    for (int p = 0; p < DIGEST_POINTS; p++) /* the 1 that is added to every element */
        whole[p] = table.prefix[p][n];
#ifdef __x86_64__
    if (avx2)
        done = sum_avx2(whole, data, elem_bytes, n);
#else
    (void)avx2;
#endif
    if (done < n)
        sum_plain(whole, data, elem_bytes, done, n);
    for (int p = 0; p < DIGEST_POINTS; p++)
        sum[p] = digest_mod_reduce(whole[p]);
}

static void sum_block(uint64_t sum[DIGEST_POINTS], const unsigned char *data, int elem_bytes, int n,
                      bool avx2)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint64_t second[DIGEST_POINTS];

    pthread_once(&once, make_table);
    sum_half(sum, data, elem_bytes, n < HALF ? n : HALF, avx2);
    if (n <= HALF)
        return;
    sum_half(second, data + (size_t)HALF * (size_t)elem_bytes, elem_bytes, n - HALF, avx2);
    for (int p = 0; p < DIGEST_POINTS; p++)
        sum[p] = digest_mod_add(sum[p], digest_mod_multiply(second[p], table.half[p]));
}

void digest_block_rows(uint64_t sum[DIGEST_POINTS], const struct digest_rows *rows,
                       enum digest_variant v)
{
    uint64_t power[DIGEST_POINTS] = { 1, 1 }, row[DIGEST_POINTS];

#ifdef __x86_64__
    if (v == DIGEST_IFMA) {
        digest_rows_sum(sum, rows);
        return;
    }
#endif
    for (int p = 0; p < DIGEST_POINTS; p++)
        sum[p] = 0;
    for (int64_t i = 0; i < rows->n_rows; i++) {
        sum_block(row, (const unsigned char *)rows->data + i * rows->stride_bytes, rows->elem_bytes,
                  rows->n, v == DIGEST_AVX2);
        for (int p = 0; p < DIGEST_POINTS; p++) {
            sum[p] = digest_mod_add(sum[p], digest_mod_multiply(row[p], power[p]));
            power[p] = digest_mod_multiply(power[p], rows->factor[p]);
        }
    }
}

void digest_block_sum(uint64_t sum[DIGEST_POINTS], const void *data, int elem_bytes, int n,
                      enum digest_variant v)
{
    const struct digest_rows one = {
        .data = data, .n_rows = 1, .elem_bytes = elem_bytes, .n = n, .factor = { 1, 1 }
    };

    digest_block_rows(sum, &one, v);
}
