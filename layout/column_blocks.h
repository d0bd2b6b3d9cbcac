/*
 * layout/column_blocks.h - the blocks of columns in which a box is stored.
 *
 * Tensor parallelism cuts the columns of some tensors (Llama's o_proj and down_proj). Stored row by
 * row, half of the columns could only be read together with the other half. So a box of such a
 * tensor is stored as blocks of columns, each a box of its own. Their edges are where 2, 4 or 8
 * ranks cut the columns, so that a resume or a reshard to such a layout reads whole boxes.
 */
#ifndef LAYOUT_COLUMN_BLOCKS_H
#define LAYOUT_COLUMN_BLOCKS_H

#include "layout/box.h"
#include "layout/tensor.h"

enum {
    COLUMN_BLOCKS_MAX = 8,         /* of a tensor, or of each of its fused blocks */
    COLUMN_BYTES_LEAST = 64 << 10, /* a smaller block would cost more than it saves */
};

/* Cut b, a box of t, into its blocks, from left to right. One block, b itself, when columns are not
 * cut or the blocks would be too small. `blocks` has room for COLUMN_BLOCKS_MAX. Returns their
 * number. */
int column_blocks(const struct tensor *t, const struct box *b, struct box *blocks);

#endif
