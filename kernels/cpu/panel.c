/* kernels/cpu/panel.c - see kernels/cpu/panel.h. */
#include "kernels/cpu/panel.h"

#ifdef __x86_64__

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

/* Rows of a matrix are too far apart for the processor to guess which one is next: so many pairs
 * ahead they are fetched. */
enum { AHEAD = 16 };

/* Interleave two rows of n elements, the second only if has_high; what is missing is zero. */
AVX512_BF16 static void pack_rest(uint32_t *y, int64_t width, const uint16_t *low,
                                  const uint16_t *high, bool has_high, int64_t n)
{
    for (int64_t j = 0; j < width; j += LANES) {
        __mmask16 have = first_16(n - j);
        __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(have, low + j));
        __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(has_high ? have : 0, high + j));

        _mm512_store_si512(y + j, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
    }
}

/* The same where nothing is missing and width is a multiple of 2 LANES. `order` has which elements
 * of both rows the first vector gets, and which the second. */
AVX512_BF16 static inline void pack_whole(uint32_t *y, int64_t width, const uint16_t *low,
                                          const uint16_t *high, const __m512i *order)
{
    for (int64_t j = 0; j < width; j += 2 * LANES) {
        __m512i a = _mm512_loadu_si512(low + j), b = _mm512_loadu_si512(high + j);

        _mm512_store_si512(y + j, _mm512_permutex2var_epi16(a, order[0], b));
        _mm512_store_si512(y + j + LANES, _mm512_permutex2var_epi16(a, order[1], b));
    }
}

AVX512_BF16 static void pack_rows_panel(uint32_t *y, int64_t width, const uint16_t *x, int64_t ld,
                                        int64_t k, int64_t n)
{
    bool is_whole = n >= width && width % (2 * LANES) == 0;
    const __m512i first =
        _mm512_set_epi32(0x002f000f, 0x002e000e, 0x002d000d, 0x002c000c, 0x002b000b, 0x002a000a,
                         0x00290009, 0x00280008, 0x00270007, 0x00260006, 0x00250005, 0x00240004,
                         0x00230003, 0x00220002, 0x00210001, 0x00200000);
    const __m512i order[2] = { first, _mm512_add_epi16(first, _mm512_set1_epi16(LANES)) };

    for (int64_t i = 0; i < k; i += 2, x += 2 * ld, y += width) {
        bool has_high = i + 1 < k;
        if (i + 2 * AHEAD + 1 < k)
            for (int64_t j = 0; j < width; j += 2 * LANES) {
                _mm_prefetch(x + 2 * AHEAD * ld + j, _MM_HINT_T0);
                _mm_prefetch(x + (2 * AHEAD + 1) * ld + j, _MM_HINT_T0);
            }
        if (is_whole && has_high)
            pack_whole(y, width, x, x + ld, order);
        else
            pack_rest(y, width, x, has_high ? x + ld : x, has_high, n);
    }
}

void panel_pack_rows(uint32_t *panels, int64_t width, const uint16_t *x, int64_t ld, int64_t k,
                     int64_t n)
{
    for (int64_t j = 0; j < n; j += width)
        pack_rows_panel(panels + j * panel_pairs(k), width, x + j, ld, k, n - j);
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

/* y[p][width] = pair p of n rows of k elements, LANES of each at most; what is missing is zero. */
AVX512_BF16 static void pack_square(uint32_t *y, int64_t width, const uint16_t *x, int64_t ld,
                                    int64_t k, int64_t n)
{
    __m512i rows[LANES];
    __mmask32 have = first_32(k);

    if (n >= LANES && k >= 2 * LANES) {
        UNROLL
        for (int64_t i = 0; i < LANES; i++) {
            rows[i] = _mm512_loadu_si512(x + i * ld);
            _mm_prefetch(x + i * ld + 8 * LANES, _MM_HINT_T0);
        }
        transpose_square(rows);
        UNROLL
        for (int64_t i = 0; i < LANES; i++)
            _mm512_store_si512(y + i * width, rows[i]);
        return;
    }
    for (int64_t i = 0; i < LANES; i++)
        rows[i] = i < n ? _mm512_maskz_loadu_epi16(have, x + i * ld) : _mm512_setzero_si512();
    transpose_square(rows);
    for (int64_t i = 0; i < LANES && 2 * i < k; i++)
        _mm512_store_si512(y + i * width, rows[i]);
}

void panel_pack_columns(uint32_t *panels, int64_t width, const uint16_t *x, int64_t ld, int64_t k,
                        int64_t n)
{
    for (int64_t j0 = 0; j0 < n; j0 += width) {
        uint32_t *y = panels + j0 * panel_pairs(k);
        for (int64_t l = 0; l < k; l += 2 * LANES)
            for (int64_t j = 0; j < width; j += LANES)
                pack_square(y + l / 2 * width + j, width, x + (j0 + j) * ld + l, ld, k - l,
                            n - j0 - j);
    }
}

/* ---- packing tiles ---- */

enum { TILE = PANEL_TILE, TILE_WORDS = TILE * TILE };

AVX512_BF16 void panel_pack_tiles(uint32_t *tiles, const uint16_t *x, int64_t ld, int64_t k,
                                  int64_t n)
{
    for (int64_t i = 0; i < n; i += TILE)
        for (int64_t l = 0; l < k; l += 2 * TILE, tiles += TILE_WORDS) {
            __mmask32 have = first_32(k - l);
            for (int64_t r = 0; r < TILE; r++)
                _mm512_store_si512(tiles + r * TILE,
                                   i + r < n ? _mm512_maskz_loadu_epi16(have, x + (i + r) * ld + l)
                                             : _mm512_setzero_si512());
        }
}

/* One tile of x[k][ld], whose first n columns are its rows. */
AVX512_BF16 static void pack_tile_transposed(uint32_t *tile, const uint16_t *x, int64_t ld,
                                             int64_t k, int64_t n)
{
    __m512i rows[TILE];
    __mmask16 have = first_16(n);

    for (int64_t p = 0; p < TILE; p++, x += 2 * ld) {
        __mmask16 low = 2 * p < k ? have : 0, high = 2 * p + 1 < k ? have : 0;
        __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(low, x));
        __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(high, x + ld));
        rows[p] = _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
    }
    transpose_square(rows);
    for (int64_t i = 0; i < TILE; i++)
        _mm512_store_si512(tile + i * TILE, rows[i]);
}

void panel_pack_tiles_transposed(uint32_t *tiles, const uint16_t *x, int64_t ld, int64_t k,
                                 int64_t n)
{
    int64_t along_k = panel_tiles(panel_pairs(k));

    for (int64_t l = 0; l < k; l += 2 * TILE)
        for (int64_t i = 0; i < n; i += TILE)
            pack_tile_transposed(tiles + (i / TILE * along_k + l / (2 * TILE)) * TILE_WORDS,
                                 x + l * ld + i, ld, k - l, n - i);
}

/* ---- the product ---- */

/* m rows and `vectors` vectors of columns, both known to the compiler, so that all sums are
 * registers. alpha and beta are read after the loop, because no register is left for them. C is
 * fetched early, because it is not in the cache. */
AVX512_BF16 static inline __attribute__((always_inline)) void sums(const struct panel_product *t,
                                                                   const int m, const int vectors)
{
    __m512 sum[PANEL_ROWS][PANEL_COLUMNS / LANES];
    const uint16_t *a = t->a;
    const uint32_t *b = t->b;

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
    const __m512 alpha = _mm512_set1_ps(t->alpha), beta = _mm512_set1_ps(t->beta);
    const __mmask16 last = first_16(t->n - (int64_t)(vectors - 1) * LANES);
    const bool adds = t->beta != 0;
    float *const c = t->c;
    const int64_t ldc = t->ldc;
    UNROLL
    for (int i = 0; i < m; i++)
        UNROLL
    for (int j = 0; j < vectors; j++) {
        __mmask16 have = j == vectors - 1 ? last : 0xffff;
        sum[i][j] = _mm512_mul_ps(alpha, sum[i][j]);
        if (adds)
            sum[i][j] = _mm512_fmadd_ps(
                beta, _mm512_maskz_loadu_ps(have, c + i * ldc + (int64_t)j * LANES), sum[i][j]);
    }
    UNROLL
    for (int i = 0; i < m; i++)
        UNROLL
    for (int j = 0; j < vectors; j++)
        _mm512_mask_storeu_ps(c + i * ldc + (int64_t)j * LANES, j == vectors - 1 ? last : 0xffff,
                              sum[i][j]);
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

#endif
