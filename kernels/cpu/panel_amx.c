/* kernels/cpu/panel_amx.c - see kernels/cpu/panel_amx.h. */
#include "kernels/cpu/panel_amx.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/avx512.h"

#define AMX \
    __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

/* gcc 12 does not know which memory a load or a store of a tile uses. */
#define TILES_AND_MEMORY() __asm__ volatile("" ::: "memory")

enum {
    TILE = 16,        /* rows; floats, or pairs of bf16, of a row */
    BLOCK = 2 * TILE, /* rows and columns of C whose sums are in tiles */
};

/* ---- the shape of the tiles ---- */

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#define ALL_8(x)               \
    {                          \
        x, x, x, x, x, x, x, x \
    }

void AMX panel_amx_begin(void)
{
    static const struct tile_config config __attribute__((aligned(
        64))) = { .palette = 1, .row_bytes = ALL_8(TILE * sizeof(float)), .rows = ALL_8(TILE) };

    _tile_loadconfig(&config);
}

void AMX panel_amx_end(void)
{
    _tile_release();
}

/* ---- tiles at the edges ---- */

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* A tile's words in memory: where its first row is, and how far its rows are apart. */
struct tile_words {
    const uint32_t *at;
    int64_t ld; /* bytes */
};

/* A copy of the first `rows` rows of `pairs` words; zeroes for the rest. */
AMX static struct tile_words padded(uint32_t *copy, const void *x, int64_t ld, int64_t rows,
                                    int64_t pairs)
{
    __mmask16 have = (__mmask16)((1u << pairs) - 1);

    for (int64_t i = 0; i < TILE; i++)
        _mm512_store_si512(copy + i * TILE,
                           i < rows ? _mm512_maskz_loadu_epi32(have, (const char *)x + i * ld)
                                    : _mm512_setzero_si512());
    return (struct tile_words){ copy, TILE * sizeof *copy };
}

/* Pairs `pair` and following of the rows `row` and following of A. */
AMX static inline struct tile_words tile_of_a(const struct panel_product *p, uint32_t *copy,
                                              int64_t row, int64_t pair)
{
    int64_t rows = least(TILE, p->m - row), pairs = least(TILE, p->pairs - pair);
    const uint16_t *at = p->a + row * p->a_row + 2 * pair;
    int64_t ld = p->a_row * (int64_t)sizeof *at;

    if (rows == TILE && pairs == TILE)
        return (struct tile_words){ (const uint32_t *)(const void *)at, ld };
    return padded(copy, at, ld, rows, pairs);
}

/* The same pairs of columns `column` and following of B. A's copy has zeroes where pairs are
 * missing, but what B has there may be a NaN. */
AMX static inline struct tile_words tile_of_b(const struct panel_product *p, uint32_t *copy,
                                              int64_t pair, int64_t column)
{
    const uint32_t *at = p->b + pair * PANEL_COLUMNS + column;
    int64_t pairs = least(TILE, p->pairs - pair), ld = PANEL_COLUMNS * (int64_t)sizeof *at;

    if (pairs == TILE)
        return (struct tile_words){ at, ld };
    return padded(copy, at, ld, pairs, TILE);
}

/* ---- the product ---- */

/* C's rows and columns from `row` and `column` on, a tile at most: alpha sums + beta C. */
AMX static void put(const struct panel_product *p, const float *sums, int64_t row, int64_t column)
{
    const __m512 alpha = _mm512_set1_ps(p->alpha), beta = _mm512_set1_ps(p->beta);
    int64_t rows = least(TILE, p->m - row), columns = least(TILE, p->n - column);
    __mmask16 have = (__mmask16)((1u << columns) - 1);
    float *c = p->c + row * p->ldc + column;

    for (int64_t i = 0; i < rows; i++, c += p->ldc) {
        __m512 y = _mm512_mul_ps(alpha, _mm512_load_ps(sums + i * TILE));
        if (p->beta != 0)
            y = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(have, c), y);
        _mm512_mask_storeu_ps(c, have, y);
    }
}

#define LOAD(tile, words)                                \
    do {                                                 \
        struct tile_words words_ = words;                \
        TILES_AND_MEMORY();                              \
        _tile_loadd(tile, words_.at, (size_t)words_.ld); \
    } while (0)

#define PUT(tile, row, column)                         \
    do {                                               \
        TILES_AND_MEMORY();                            \
        _tile_stored(tile, sums, TILE * sizeof *sums); \
        TILES_AND_MEMORY();                            \
        put(p, sums, row, column);                     \
    } while (0)

/* C's block of BLOCK rows and columns from `row` and `column` on. Tiles 0 to 3 have the sums. */
AMX static void block_product(const struct panel_product *p, int64_t row, int64_t column)
{
    uint32_t copy[TILE * TILE] __attribute__((aligned(64)));
    float sums[TILE * TILE] __attribute__((aligned(64)));
    bool lower = p->m - row > TILE, right = p->n - column > TILE;

    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t pair = 0; pair < p->pairs; pair += TILE) {
        LOAD(4, tile_of_a(p, copy, row, pair));
        LOAD(6, tile_of_b(p, copy, pair, column));
        _tile_dpbf16ps(0, 4, 6);
        if (right) {
            LOAD(7, tile_of_b(p, copy, pair, column + TILE));
            _tile_dpbf16ps(1, 4, 7);
        }
        if (!lower)
            continue;
        LOAD(5, tile_of_a(p, copy, row + TILE, pair));
        _tile_dpbf16ps(2, 5, 6);
        if (right)
            _tile_dpbf16ps(3, 5, 7);
    }
    PUT(0, row, column);
    if (right)
        PUT(1, row, column + TILE);
    if (lower)
        PUT(2, row + TILE, column);
    if (lower && right)
        PUT(3, row + TILE, column + TILE);
}

void panel_amx_product(const struct panel_product *p)
{
    for (int64_t row = 0; row < p->m; row += BLOCK)
        for (int64_t column = 0; column < p->n; column += BLOCK)
            block_product(p, row, column);
}
