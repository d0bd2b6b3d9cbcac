/*
 * kernels/cpu/panel_amx.h - the product of kernels/cpu/panel.h by AMX's tiles of 16 x 16 floats.
 * For processors that have UNIT_AMX_BF16 alone. Inside kernels/cpu/.
 */
#ifndef KERNELS_CPU_PANEL_AMX_H
#define KERNELS_CPU_PANEL_AMX_H

#include "kernels/cpu/panel.h"

/* The calling thread's tiles are set up by panel_amx_begin and given back by panel_amx_end, after
 * which a switch of threads saves none of them. Nothing between them may use tiles in another way,
 * as oneDNN's products do. */
void panel_amx_begin(void);
void panel_amx_end(void);

/* A product of panel.h with any m, and where the tiles of A are. Tile (t, u) has PANEL_TILE rows
 * and pairs: row i is at product.a + t a_down + u a_right + i product.a_row (strides in bf16;
 * product.a_step is 2). So A is packed in tiles, or a matrix whose rows run along k. An element's
 * bits depend on its row of A, its column of B, C before and k alone. */
struct panel_amx {
    struct panel_product product;
    int64_t a_right, a_down;
};

void panel_amx_product(const struct panel_amx *x);

#endif
