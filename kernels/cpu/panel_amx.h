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

/* As panel_product_rows, for an A whose rows run along k (a_step is 2). An element's bits depend on
 * its row of A, its column of B and k alone. */
void panel_amx_product(const struct panel_product *p);

#endif
