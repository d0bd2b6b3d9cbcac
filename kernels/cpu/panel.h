/*
 * kernels/cpu/panel.h - bf16 matrices in the form that AVX-512 BF16 multiplies, and their product.
 * For processors that have UNIT_AVX512_BF16 alone. Inside kernels/cpu/.
 *
 * VDPBF16PS adds the products of two pairs of bf16 to each float. So a packed matrix has pairs
 * along k, the axis of the sum: element [p][x] is one uint32_t with k = 2 p (low half) and k = 2 p
 * + 1 of row or column x. A panel has `width` neighbouring x of all pairs, [pairs][width]; panels
 * follow each other. What is missing in the last pair and the last panel is zero.
 */
#ifndef KERNELS_CPU_PANEL_H
#define KERNELS_CPU_PANEL_H

#include <stdint.h>

enum {
    PANEL_LANES = 16, /* floats of a vector; a panel's width is a multiple */
    PANEL_ROWS = 6,   /* largest m and n of panel_product: 24 sums fill the registers */
    PANEL_COLUMNS = 64,
};

static inline int64_t panel_pairs(int64_t k)
{
    return (k + 1) / 2;
}

/* uint32_t of n rows or columns in panels. */
static inline int64_t panel_words(int64_t k, int64_t n, int64_t width)
{
    return (n + width - 1) / width * width * panel_pairs(k);
}

/* Pack x[k][ld], whose first n columns are taken; and x[n][ld], whose first k columns are. */
void panel_pack_rows(uint32_t *panels, int64_t width, const uint16_t *x, int64_t ld, int64_t k,
                     int64_t n);
void panel_pack_columns(uint32_t *panels, int64_t width, const uint16_t *x, int64_t ld, int64_t k,
                        int64_t n);

/* A tile, which AMX multiplies: PANEL_TILE rows of as many pairs. The next one along k follows,
 * then those of the next rows. What is missing is zero. */
enum { PANEL_TILE = 16 };

static inline int64_t panel_tiles(int64_t n)
{
    return (n + PANEL_TILE - 1) / PANEL_TILE;
}

/* uint32_t of n rows in tiles. */
static inline int64_t panel_tile_words(int64_t k, int64_t n)
{
    return panel_tiles(n) * panel_tiles(panel_pairs(k)) * PANEL_TILE * PANEL_TILE;
}

/* Pack x[n][ld], whose first k columns are taken, into tiles; and x[k][ld], whose first n are. */
void panel_pack_tiles(uint32_t *tiles, const uint16_t *x, int64_t ld, int64_t k, int64_t n);
void panel_pack_tiles_transposed(uint32_t *tiles, const uint16_t *x, int64_t ld, int64_t k,
                                 int64_t n);

/* C[m][n] = alpha A B + beta C, m at most PANEL_ROWS, n at most PANEL_COLUMNS. Pair p of row i of A
 * is the two bf16 at a + i a_row + p a_step (strides in bf16; pairs may be unaligned): so A is
 * packed, or a matrix whose rows run along k. B is a panel, or anything with 64 words between
 * pairs. C is not read when beta is 0. */
struct panel_product {
    int64_t m, n, pairs;
    const uint16_t *a;
    int64_t a_row, a_step;
    const uint32_t *b; /* [pairs][PANEL_COLUMNS] */
    float *c;
    int64_t ldc;
    float alpha, beta;
};

void panel_product(const struct panel_product *p);

/* The same for any m. */
void panel_product_rows(const struct panel_product *p);

#endif
