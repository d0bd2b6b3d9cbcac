/*
 * layout/column_blocks.h - the blocks of columns in which a box is stored.
 *
 * A tensor whose columns tensor parallelism cuts (Llama's o_proj and down_proj) lies row by row, so
 * that a rank which wants a half of the columns would have to read all of them. Therefore what a
 * rank writes of it is stored as blocks of columns, each a box of its own, with edges where a cut
 * to two, four or eight ranks has them: who resumes or reshards at such a layout reads whole boxes.
 */
#ifndef LAYOUT_COLUMN_BLOCKS_H
#define LAYOUT_COLUMN_BLOCKS_H

#include "layout/layout.h"

enum {
    COLUMN_BLOCKS_MAX = 8,         /* of a tensor, or of each of its fused blocks */
    COLUMN_BYTES_LEAST = 64 << 10, /* a smaller block would cost more than it saves */
};

/* Cut b, a box of t, into its blocks, from left to right; one, b itself, where columns are not cut
 * or blocks would be too small. blocks has room for COLUMN_BLOCKS_MAX. Returns how many. */
int column_blocks(const struct tensor *t, const struct box *b, struct box *blocks);

#endif
