/* kernels/cpu/panel.c - see kernels/cpu/panel.h. */
#include "kernels/cpu/panel.h"

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/avx512.h"

enum { LANES = PANEL_LANES };

/* The n first of 16 or 32 lanes, none where n is negative. */
static __mmask16 first_16(int64_t n)
{
    return n <= 0 ? 0 : (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1);
}

static __mmask32 first_32(int64_t n)
{
    return n <= 0 ? 0 : (__mmask32)(n >= 32 ? 0xffffffff : (1u << n) - 1);
}

/* ---- packing ---- */

/* y[16] = pairs of the n first lanes of two rows. */
AVX512_BF16 static inline __attribute__((always_inline)) void pack_lanes(
    uint32_t *y, const uint16_t *low, const uint16_t *high, __mmask16 have, __mmask16 have_high)
{
    __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(have, low));
    __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(have_high, high));

    _mm512_store_si512(y, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
}

AVX512_BF16 void panel_pack_rows(uint32_t *panels, int64_t width, const uint16_t *x, int64_t ld,
                                 int64_t k, int64_t n)
{
    int64_t pairs = panel_pairs(k);

    for (int64_t p = 0; p < pairs; p++) {
        bool has_high = 2 * p + 1 < k;
        const uint16_t *low = x + 2 * p * ld, *high = has_high ? low + ld : low;
        uint32_t *y = panels + p * width;
        for (int64_t j0 = 0; j0 < n; j0 += width, y += pairs * width)
            if (has_high && j0 + width <= n)
                for (int64_t j = 0; j < width; j += LANES)
                    pack_lanes(y + j, low + j0 + j, high + j0 + j, 0xffff, 0xffff);
            else
                for (int64_t j = 0; j < width; j += LANES)
                    pack_lanes(y + j, low + j0 + j, high + j0 + j, first_16(n - j0 - j),
                               has_high ? first_16(n - j0 - j) : 0);
    }
}

/* y[p][16] = x[16][16] transposed; both in words. */
AVX512_BF16 static void transpose_square(__m512i *x)
{
    __m512i y[LANES];

    UNROLL
    for (int i = 0; i < LANES; i += 4) {
        __m512i a = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        __m512i b = _mm512_unpackhi_epi32(x[i], x[i + 1]);
        __m512i c = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]);
        __m512i d = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
        y[i] = _mm512_unpacklo_epi64(a, c);
        y[i + 1] = _mm512_unpackhi_epi64(a, c);
        y[i + 2] = _mm512_unpacklo_epi64(b, d);
        y[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    /* y[4 r + c] has columns c, 4 + c, 8 + c and 12 + c of rows 4 r .. 4 r + 3 */
    UNROLL
    for (int c = 0; c < 4; c++) {
        __m512i a = _mm512_shuffle_i32x4(y[c], y[4 + c], 0x88);
        __m512i b = _mm512_shuffle_i32x4(y[8 + c], y[12 + c], 0x88);
        __m512i d = _mm512_shuffle_i32x4(y[c], y[4 + c], 0xdd);
        __m512i e = _mm512_shuffle_i32x4(y[8 + c], y[12 + c], 0xdd);
        x[c] = _mm512_shuffle_i32x4(a, b, 0x88);
        x[4 + c] = _mm512_shuffle_i32x4(d, e, 0x88);
        x[8 + c] = _mm512_shuffle_i32x4(a, b, 0xdd);
        x[12 + c] = _mm512_shuffle_i32x4(d, e, 0xdd);
    }
}

AVX512_BF16 void panel_pack_columns(uint32_t *panels, int64_t width, const uint16_t *x, int64_t ld,
                                    int64_t k, int64_t n)
{
    int64_t pairs = panel_pairs(k), padded = (n + width - 1) / width * width;

    for (int64_t j = 0; j < padded; j += LANES) {
        uint32_t *y = panels + j / width * pairs * width + j % width;
        for (int64_t p = 0; p < pairs; p += LANES) {
            __m512i rows[LANES];
            __mmask32 have = first_32(k - 2 * p);
            for (int64_t i = 0; i < LANES; i++)
                rows[i] = j + i < n ? _mm512_maskz_loadu_epi16(have, x + (j + i) * ld + 2 * p)
                                    : _mm512_setzero_si512();
            transpose_square(rows);
            for (int64_t i = 0; i < LANES && p + i < pairs; i++)
                _mm512_store_si512(y + (p + i) * width, rows[i]);
        }
    }
}

/* ---- the product ---- */

/* m rows and `vectors` vectors of columns, both known to the compiler, so that all sums are
 * registers. C is fetched early, because it is not in the cache. */
AVX512_BF16 static inline __attribute__((always_inline)) void sums(const struct panel_product *t,
                                                                   const int m, const int vectors)
{
    __m512 sum[PANEL_ROWS][PANEL_COLUMNS / LANES];
    const uint16_t *a = t->a;
    const uint32_t *b = t->b;
    const __m512 alpha = _mm512_set1_ps(t->alpha), beta = _mm512_set1_ps(t->beta);
    const __mmask16 last = first_16(t->n - (int64_t)(vectors - 1) * LANES);

    UNROLL
    for (int i = 0; i < m; i++)
        UNROLL
    for (int j = 0; j < vectors; j++) {
        __builtin_prefetch(t->c + i * t->ldc + (int64_t)j * LANES, 1);
        sum[i][j] = _mm512_setzero_ps();
    }
    for (int64_t p = 0; p < t->pairs; p++, a += t->a_step, b += PANEL_COLUMNS) {
        __m512i right[PANEL_COLUMNS / LANES];
        UNROLL
        for (int j = 0; j < vectors; j++)
            right[j] = _mm512_loadu_si512(b + (int64_t)j * LANES);
        UNROLL
        for (int i = 0; i < m; i++) {
            int32_t pair;
            memcpy(&pair, a + i * t->a_row, sizeof pair);
            UNROLL
            for (int j = 0; j < vectors; j++)
                sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)_mm512_set1_epi32(pair),
                                             (__m512bh)right[j]);
        }
    }
    UNROLL
    for (int i = 0; i < m; i++)
        UNROLL
    for (int j = 0; j < vectors; j++) {
        float *c = t->c + i * t->ldc + (int64_t)j * LANES;
        __mmask16 have = j == vectors - 1 ? last : 0xffff;
        __m512 y = _mm512_mul_ps(alpha, sum[i][j]);
        if (t->beta != 0)
            y = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(have, c), y);
        _mm512_mask_storeu_ps(c, have, y);
    }
}

#define SUMS(m, vectors)                                                        \
    AVX512_BF16 static void sums_##m##_##vectors(const struct panel_product *t) \
    {                                                                           \
        sums(t, m, vectors);                                                    \
    }
#define SUMS_OF(m) SUMS(m, 1) SUMS(m, 2) SUMS(m, 3) SUMS(m, 4)
SUMS_OF(1)
SUMS_OF(2)
SUMS_OF(3)
SUMS_OF(4)
SUMS_OF(5)
SUMS_OF(6)

#define ROW_OF(m)                                              \
    {                                                          \
        sums_##m##_1, sums_##m##_2, sums_##m##_3, sums_##m##_4 \
    }

void panel_product(const struct panel_product *p)
{
    static void (*const table[PANEL_ROWS][PANEL_COLUMNS / LANES])(const struct panel_product *) = {
        ROW_OF(1), ROW_OF(2), ROW_OF(3), ROW_OF(4), ROW_OF(5), ROW_OF(6),
    };

    table[p->m - 1][(p->n - 1) / LANES](p);
}

void panel_product_rows(const struct panel_product *p)
{
    struct panel_product part = *p;

    for (int64_t i = 0; i < p->m; i += PANEL_ROWS) {
        part.m = p->m - i < PANEL_ROWS ? p->m - i : PANEL_ROWS;
        panel_product(&part);
        part.a += PANEL_ROWS * p->a_row;
        part.c += PANEL_ROWS * p->ldc;
    }
}
