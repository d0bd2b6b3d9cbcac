/* reshard/engine/tile.c - cuts tensors into tiles; see reshard/engine/transfer_plan.h. */
#include "reshard/engine/transfer_plan.h"

#include <stdlib.h>

/* The largest tile, in the wider of its two types. A plan chooses buffers for smaller tiles
 * (transfer_plan.c); a journal of an earlier version may state larger ones. */
enum { TILE_BYTES = 4 << 20 };

int64_t transfer_tile_elements(const struct transfer_plan *p, int tensor)
{
    const struct reshard_tensor *t = &p->transfer.tensors[tensor];
    struct box whole = box_whole(t->ndim, t->shape);
    enum dtype from = p->transfer.from->dtypes[tensor], to = p->transfer.to->dtypes[tensor];
    int64_t widest = dtype_bytes(from) > dtype_bytes(to) ? dtype_bytes(from) : dtype_bytes(to);
    int64_t n = p->thread_bytes / transfer_tile_need(from, to);

    if (n > TILE_BYTES / widest)
        n = TILE_BYTES / widest;
    return n < box_elements(&whole) ? n : box_elements(&whole);
}

int64_t transfer_tile_need(enum dtype from, enum dtype to)
{
    /* what is read, what is written, and what is read after its cast */
    return dtype_bytes(from) + dtype_bytes(to) * (from == to ? 1 : 2);
}

int transfer_tile_tensor(const struct transfer_plan *p, int64_t number)
{
    int low = 0, high = p->transfer.n_tensors;

    while (low < high) {
        int mid = low + (high - low) / 2;

        if (p->first_tile[mid + 1] > number)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* Remove the rows before and after those that the target wants. Only the axis that is a range may
 * shrink; otherwise the tile would no longer be a run. */
static void trim(const struct transfer_plan *p, struct transfer_tile *tile)
{
    int axis = 0;
    int64_t lo = INT64_MAX, end = 0;

    while (axis < tile->box.ndim && tile->box.len[axis] == 1)
        axis++;
    if (axis == tile->box.ndim)
        return;
    for (int i = 0; i < tile->n_to; i++) {
        const struct box *b = extent_index_box(p->to, tile->tensor, tile->to[i]);

        if (b->lo[axis] < lo)
            lo = b->lo[axis];
        if (b->lo[axis] + b->len[axis] > end)
            end = b->lo[axis] + b->len[axis];
    }
    if (lo < tile->box.lo[axis])
        lo = tile->box.lo[axis];
    if (end > tile->box.lo[axis] + tile->box.len[axis])
        end = tile->box.lo[axis] + tile->box.len[axis];
    tile->box.lo[axis] = lo;
    tile->box.len[axis] = end - lo;
}

static bool is_wanted(const struct transfer_plan *p, const struct transfer_tile *tile, int from)
{
    struct box part, overlap;

    box_meet(&part, extent_index_box(p->from, tile->tensor, from), &tile->box);
    for (int i = 0; i < tile->n_to; i++)
        if (box_meet(&overlap, extent_index_box(p->to, tile->tensor, tile->to[i]), &part))
            return true;
    return false;
}

/* Remove the source extents that no target extent wants: when one rank resumes, the columns of all
 * other ranks. */
static void keep_wanted(const struct transfer_plan *p, struct transfer_tile *tile)
{
    int kept = 0;

    for (int i = 0; i < tile->n_from; i++)
        if (is_wanted(p, tile, tile->from[i]))
            tile->from[kept++] = tile->from[i];
    tile->n_from = kept;
}

static bool is_mine(const struct transfer_plan *p, int tensor, int position)
{
    return !p->transfer.mine || p->transfer.mine[extent_index_number(p->to, tensor, position)];
}

bool transfer_counts(const struct transfer_plan *p, int tensor, const int *positions, int n)
{
    return n > 0 && is_mine(p, tensor, positions[0]);
}

int transfer_keep_mine(const struct transfer_plan *p, int tensor, int *positions, int n)
{
    int kept = 0;

    for (int i = 0; i < n; i++)
        if (is_mine(p, tensor, positions[i]))
            positions[kept++] = positions[i];
    return kept;
}

tp_status transfer_tile_make(struct transfer_tile *tile, const struct transfer_plan *p,
                             struct tp_err *err)
{
    *tile = (struct transfer_tile){ .from = calloc((size_t)p->max_from, sizeof *tile->from),
                                    .to = calloc((size_t)p->max_to, sizeof *tile->to) };
    if (tile->from && tile->to)
        return TP_OK;
    return tp_fail(err, TP_E_NOMEM, "no memory for a tile of %d and %d extents", p->max_from,
                   p->max_to);
}

void transfer_tile_free(struct transfer_tile *tile)
{
    free(tile->from);
    free(tile->to);
}

void transfer_tile_get(const struct transfer_plan *p, int64_t number, struct transfer_tile *tile)
{
    const struct reshard_tensor *t;
    struct box whole;

    tile->tensor = transfer_tile_tensor(p, number);
    t = &p->transfer.tensors[tile->tensor];
    whole = box_whole(t->ndim, t->shape);
    box_run(&tile->box, &whole, transfer_tile_elements(p, tile->tensor),
            number - p->first_tile[tile->tensor]);
    tile->n_from = 0;
    tile->n_to = extent_index_find(p->to, tile->tensor, &tile->box, tile->to);
    tile->n_to = transfer_keep_mine(p, tile->tensor, tile->to, tile->n_to);
    if (tile->n_to == 0)
        return;
    if (!p->transfer.mine) /* else all processes have the same tiles, so that one counts a cast */
        trim(p, tile);
    tile->n_from = extent_index_find(p->from, tile->tensor, &tile->box, tile->from);
    if (p->transfer.partial || p->transfer.mine)
        keep_wanted(p, tile);
}

/* Elements of the tile that lie in the extents at these positions. */
static int64_t elements_in(const struct extent_index *x, const struct transfer_tile *tile,
                           const int *positions, int n)
{
    int64_t sum = 0;
    struct box part;

    for (int i = 0; i < n; i++)
        if (box_meet(&part, extent_index_box(x, tile->tensor, positions[i]), &tile->box))
            sum += box_elements(&part);
    return sum;
}

void transfer_tile_bytes(const struct transfer_plan *p, const struct transfer_tile *tile,
                         int64_t *read, int64_t *written)
{
    const struct transfer *t = &p->transfer;

    *read = elements_in(p->from, tile, tile->from, tile->n_from) *
            dtype_bytes(t->from->dtypes[tile->tensor]);
    *written =
        elements_in(p->to, tile, tile->to, tile->n_to) * dtype_bytes(t->to->dtypes[tile->tensor]);
}
