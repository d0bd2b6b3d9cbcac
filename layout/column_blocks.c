/* layout/column_blocks.c - see layout/column_blocks.h. */
#include "layout/column_blocks.h"

/* Columns of a block: an eighth of the units, a quarter or a half, the smallest part into which the
 * units divide and that is large enough with the rows of b; otherwise the whole axis. */
static int64_t block_width(const struct tensor *t, const struct box *b)
{
    const struct placement *p = &t->placement;
    int64_t each = t->shape[p->dim] / p->blocks, units = each / p->unit;
    int64_t column_bytes = box_elements(b) / b->len[p->dim] * dtype_bytes(t->dtype);

    for (int n = p->first_block ? 0 : COLUMN_BLOCKS_MAX; n > 1; n /= 2)
        if (units % n == 0 && column_bytes * (each / n) >= COLUMN_BYTES_LEAST)
            return each / n;
    return t->shape[p->dim];
}

int column_blocks(const struct tensor *t, const struct box *b, struct box *blocks)
{
    int dim = t->placement.dim, n = 0;
    int64_t end, width;

    blocks[0] = *b;
    if (dim < 1 || box_is_empty(b))
        return 1;
    width = block_width(t, b);
    end = b->lo[dim] + b->len[dim];
    for (int64_t at = b->lo[dim]; at < end; n++) {
        int64_t edge = (at / width + 1) * width;

        blocks[n] = *b;
        blocks[n].lo[dim] = at;
        blocks[n].len[dim] = (edge < end ? edge : end) - at;
        at += blocks[n].len[dim];
    }
    return n;
}
