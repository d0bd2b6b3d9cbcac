/* kernels/cpu/panel_amx.c - see kernels/cpu/panel_amx.h. */
#include "kernels/cpu/panel_amx.h"

#ifdef __x86_64__

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/avx512.h"

/* gcc 12 does not know which memory a load or a store of a tile uses. */
#define TILES_AND_MEMORY() __asm__ volatile("" ::: "memory")

enum {
    TILE = PANEL_TILE, /* rows; floats, or pairs of bf16, of a row */
    BLOCK = 2 * TILE,  /* rows and columns of C whose sums are in tiles */
};

/* ---- the shape of the tiles ---- */

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

AMX_BF16 void panel_amx_begin(void)
{
    enum { WORDS = TILE * sizeof(float) };
    static const struct tile_config config __attribute__((aligned(64))) = {
        .palette = 1,
        .row_bytes = { WORDS, WORDS, WORDS, WORDS, WORDS, WORDS, WORDS, WORDS },
        .rows = { TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE },
    };

    _tile_loadconfig(&config);
}

AMX_BF16 void panel_amx_end(void)
{
    _tile_release();
}

/* ---- where a tile is ---- */

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* A tile in memory: its first row, and the bytes from one row to the next. */
struct tile_place {
    const void *at;
    int64_t ld;
};

/* A copy of the first `rows` rows of `n` words; zeroes for the rest. */
AMX_BF16 static struct tile_place padded(uint32_t *copy, const void *x, int64_t ld, int64_t rows,
                                         int64_t n)
{
    __mmask16 have = (__mmask16)((1u << n) - 1);

    for (int64_t i = 0; i < TILE; i++)
        _mm512_store_si512(copy + i * TILE,
                           i < rows ? _mm512_maskz_loadu_epi32(have, (const char *)x + i * ld)
                                    : _mm512_setzero_si512());
    return (struct tile_place){ copy, TILE * sizeof *copy };
}

/* Pairs `pair` and following of the rows `row` and following of A. */
static inline struct tile_place place_in_a(const struct panel_amx *x, uint32_t *copy, int64_t row,
                                           int64_t pair)
{
    const struct panel_product *p = &x->product;
    int64_t rows = least(TILE, p->m - row), pairs = least(TILE, p->pairs - pair);
    const uint16_t *at = p->a + row / TILE * x->a_down + pair / TILE * x->a_right;
    int64_t ld = p->a_row * (int64_t)sizeof *at;

    if (rows == TILE && pairs == TILE)
        return (struct tile_place){ at, ld };
    return padded(copy, at, ld, rows, pairs);
}

/* The same pairs of columns `column` and following of B. A's copy has zeroes where pairs are
 * missing, but what B has there may be a NaN. */
static inline struct tile_place place_in_b(const struct panel_product *p, uint32_t *copy,
                                           int64_t pair, int64_t column)
{
    const uint32_t *at = p->b + pair * PANEL_COLUMNS + column;
    int64_t pairs = least(TILE, p->pairs - pair), ld = PANEL_COLUMNS * (int64_t)sizeof *at;

    if (pairs == TILE)
        return (struct tile_place){ at, ld };
    return padded(copy, at, ld, pairs, TILE);
}

/* ---- a tile of C ---- */

/* Sums begin with C where it is only added to (alpha and beta are 1); otherwise with zeroes. */
static inline bool begins_with_c(const struct panel_product *p)
{
    return p->alpha == 1 && p->beta == 1;
}

/* A tile that C does not have whole is copied, so that its bits are those of a whole one. */
static inline struct tile_place place_in_c(const struct panel_product *p, float *copy, int64_t row,
                                           int64_t column)
{
    int64_t rows = least(TILE, p->m - row), columns = least(TILE, p->n - column);
    const float *at = p->c + row * p->ldc + column;
    int64_t ld = p->ldc * (int64_t)sizeof *at;

    if (rows == TILE && columns == TILE)
        return (struct tile_place){ at, ld };
    return padded((uint32_t *)(void *)copy, at, ld, rows, columns);
}

/* C = alpha sums + beta C, beta only where the sums do not have it yet. */
AMX_BF16 static void put(const struct panel_product *p, const float *sums, int64_t row,
                         int64_t column)
{
    const __m512 alpha = _mm512_set1_ps(p->alpha), beta = _mm512_set1_ps(p->beta);
    int64_t rows = least(TILE, p->m - row), columns = least(TILE, p->n - column);
    __mmask16 have = (__mmask16)((1u << columns) - 1);
    bool adds = p->beta != 0 && !begins_with_c(p);
    float *c = p->c + row * p->ldc + column;

    for (int64_t i = 0; i < rows; i++, c += p->ldc) {
        __m512 y = _mm512_mul_ps(alpha, _mm512_load_ps(sums + i * TILE));
        if (adds)
            y = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(have, c), y);
        _mm512_mask_storeu_ps(c, have, y);
    }
}

/* ---- the product ---- */

/* Tiles are numbers in the instructions, so what has one is a macro. */
#define LOAD(tile, where)                                \
    do {                                                 \
        struct tile_place place_ = where;                \
        TILES_AND_MEMORY();                              \
        _tile_loadd(tile, place_.at, (size_t)place_.ld); \
    } while (0)

#define STORE(tile, where, ld)                                   \
    do {                                                         \
        TILES_AND_MEMORY();                                      \
        _tile_stored(tile, where, (size_t)(ld) * sizeof(float)); \
        TILES_AND_MEMORY();                                      \
    } while (0)

/* Tiles 0 to 3 have the sums of C's block of BLOCK rows and columns from `row` and `column` on. The
 * second ones of each may be missing. */
AMX_BF16 static void load_sums(const struct panel_product *p, int64_t row, int64_t column)
{
    float copy[TILE * TILE] __attribute__((aligned(64)));
    bool lower = p->m - row > TILE, right = p->n - column > TILE;

    LOAD(0, place_in_c(p, copy, row, column));
    if (right)
        LOAD(1, place_in_c(p, copy, row, column + TILE));
    if (lower)
        LOAD(2, place_in_c(p, copy, row + TILE, column));
    if (lower && right)
        LOAD(3, place_in_c(p, copy, row + TILE, column + TILE));
}

AMX_BF16 static void clear_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

AMX_BF16 static void store_sums(const struct panel_product *p, int64_t row, int64_t column)
{
    float copy[4][TILE * TILE] __attribute__((aligned(64)));
    bool lower = p->m - row > TILE, right = p->n - column > TILE;

    STORE(0, copy[0], TILE);
    STORE(1, copy[1], TILE);
    STORE(2, copy[2], TILE);
    STORE(3, copy[3], TILE);
    put(p, copy[0], row, column);
    if (right)
        put(p, copy[1], row, column + TILE);
    if (lower)
        put(p, copy[2], row + TILE, column);
    if (lower && right)
        put(p, copy[3], row + TILE, column + TILE);
}

/* The same where C has the whole block, and is the sums. */
AMX_BF16 static void store_sums_in_place(const struct panel_product *p, int64_t row, int64_t column)
{
    float *c = p->c + row * p->ldc + column;

    STORE(0, c, p->ldc);
    STORE(1, c + TILE, p->ldc);
    STORE(2, c + TILE * p->ldc, p->ldc);
    STORE(3, c + TILE * p->ldc + TILE, p->ldc);
}

/* Add the products of A's and B's tiles to the sums. Tiles 4 and 5 are A's, 6 and 7 B's. */
AMX_BF16 static void add_products(const struct panel_amx *x, int64_t row, int64_t column)
{
    const struct panel_product *p = &x->product;
    uint32_t copy[TILE * TILE] __attribute__((aligned(64)));
    bool lower = p->m - row > TILE, right = p->n - column > TILE;

    for (int64_t pair = 0; pair < p->pairs; pair += TILE) {
        LOAD(4, place_in_a(x, copy, row, pair));
        LOAD(6, place_in_b(p, copy, pair, column));
        _tile_dpbf16ps(0, 4, 6);
        if (right) {
            LOAD(7, place_in_b(p, copy, pair, column + TILE));
            _tile_dpbf16ps(1, 4, 7);
        }
        if (!lower)
            continue;
        LOAD(5, place_in_a(x, copy, row + TILE, pair));
        _tile_dpbf16ps(2, 5, 6);
        if (right)
            _tile_dpbf16ps(3, 5, 7);
    }
}

AMX_BF16 static void block_product(const struct panel_amx *x, int64_t row, int64_t column)
{
    const struct panel_product *p = &x->product;
    bool is_whole = p->m - row >= BLOCK && p->n - column >= BLOCK;

    if (begins_with_c(p))
        load_sums(p, row, column);
    else
        clear_sums();
    add_products(x, row, column);
    if (is_whole && p->alpha == 1 && (p->beta == 0 || begins_with_c(p)))
        store_sums_in_place(p, row, column);
    else
        store_sums(p, row, column);
}

void panel_amx_product(const struct panel_amx *x)
{
    for (int64_t column = 0; column < x->product.n; column += BLOCK)
        for (int64_t row = 0; row < x->product.m; row += BLOCK)
            block_product(x, row, column);
}

#endif
