/* layout/tensor_parts.c - see layout/tensor_parts.h. */
#include "layout/tensor_parts.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Part number `part` of n units in `parts`. */
static void cut(int64_t n, int parts, int part, int64_t *lo, int64_t *len)
{
    int64_t each = (n + parts - 1) / parts;

    *lo = least(each * part, n);
    *len = least(*lo + each, n) - *lo;
}

struct tensor_parts tensor_parts_of(const struct tensor *t, int tp)
{
    struct tensor_parts p = { .units = 1, .parts = 1, .repeat = tp };

    if (t->placement.dim < 0)
        return p;
    p.units = tensor_units(t);
    p.parts = tp;
    p.repeat = 1;
    if (t->placement.replicate && p.units > 0 && p.units < tp) {
        p.parts = (int)p.units;
        p.repeat = tp / p.parts;
    }
    return p;
}

int tensor_parts_boxes(const struct tensor *t, const struct tensor_parts *p, int part,
                       struct box *boxes)
{
    const struct placement *placement = &t->placement;
    int dim = placement->dim, n = 0;
    int64_t lo, len;

    boxes[0] = box_whole(t->ndim, t->shape);
    if (dim < 0)
        return box_is_empty(&boxes[0]) ? 0 : 1;
    cut(p->units, p->parts, part, &lo, &len);
    for (int b = 0; b < placement->blocks; b++) {
        struct tensor_block block = tensor_block_of(t, b);
        int64_t from = least(lo * block.unit, block.len);

        boxes[n] = box_whole(t->ndim, t->shape);
        boxes[n].lo[dim] = block.from + from;
        boxes[n].len[dim] = least((lo + len) * block.unit, block.len) - from;
        if (!box_is_empty(&boxes[n]))
            n++;
    }
    return n;
}

/* The boxes of a tensor that is fused along its rows follow one another; otherwise they lie side by
 * side and have the same rows. */
int tensor_parts_shard(const struct tensor *t, int dp, int dp_rank, struct box *boxes, int n)
{
    bool stacked = t->placement.dim == 0;
    int64_t rows = 0, first = 0, lo, len;
    int kept = 0;

    if (n == 0 || t->ndim == 0)
        return dp_rank == 0 ? n : 0;
    for (int i = 0; i < n; i++)
        rows = stacked ? rows + boxes[i].len[0] : boxes[i].len[0];
    cut(rows, dp, dp_rank, &lo, &len);
    for (int i = 0; i < n; i++) {
        struct box b = boxes[i];
        int64_t from = lo - first, to = least(lo + len - first, b.len[0]);

        if (from < 0)
            from = 0;
        if (stacked)
            first += b.len[0];
        if (to <= from)
            continue;
        b.lo[0] += from;
        b.len[0] = to - from;
        boxes[kept++] = b;
    }
    return kept;
}
