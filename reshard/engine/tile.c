/* reshard/engine/tile.c - cuts tensors into tiles; see reshard/engine/transfer_plan.h. */
#include "reshard/engine/transfer_plan.h"

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

int transfer_tile_tensor(const struct transfer_plan *p, int64_t k)
{
    int low = 0, high = p->transfer.n_tensors;

    while (low < high) {
        int mid = low + (high - low) / 2;

        if (p->first_tile[mid + 1] > k)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* Remove the rows before and after those that the target wants. Only the axis that is a range may
 * shrink; otherwise the tile would no longer be a run. */
static void trim(const struct transfer_plan *p, struct transfer_tile *w)
{
    int axis = 0;
    int64_t lo = INT64_MAX, end = 0;

    while (axis < w->box.ndim && w->box.len[axis] == 1)
        axis++;
    if (axis == w->box.ndim)
        return;
    for (int i = 0; i < w->n_to; i++) {
        const struct box *b = extent_index_box(p->to, w->tensor, w->to[i]);

        if (b->lo[axis] < lo)
            lo = b->lo[axis];
        if (b->lo[axis] + b->len[axis] > end)
            end = b->lo[axis] + b->len[axis];
    }
    if (lo < w->box.lo[axis])
        lo = w->box.lo[axis];
    if (end > w->box.lo[axis] + w->box.len[axis])
        end = w->box.lo[axis] + w->box.len[axis];
    w->box.lo[axis] = lo;
    w->box.len[axis] = end - lo;
}

static bool is_wanted(const struct transfer_plan *p, const struct transfer_tile *w, int from)
{
    struct box part, overlap;

    box_meet(&part, extent_index_box(p->from, w->tensor, from), &w->box);
    for (int i = 0; i < w->n_to; i++)
        if (box_meet(&overlap, extent_index_box(p->to, w->tensor, w->to[i]), &part))
            return true;
    return false;
}

/* Remove the source extents that no target extent wants: when one rank resumes, the columns of all
 * other ranks. */
static void keep_wanted(const struct transfer_plan *p, struct transfer_tile *w)
{
    int kept = 0;

    for (int i = 0; i < w->n_from; i++)
        if (is_wanted(p, w, w->from[i]))
            w->from[kept++] = w->from[i];
    w->n_from = kept;
}

static bool is_mine(const struct transfer_plan *p, int tensor, int position)
{
    return !p->transfer.mine || p->transfer.mine[extent_index_number(p->to, tensor, position)];
}

bool transfer_counts_cast(const struct transfer_plan *p, int tensor, const int *positions, int n)
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

void transfer_tile_get(const struct transfer_plan *p, int64_t k, struct transfer_tile *w)
{
    const struct reshard_tensor *t;
    struct box whole;

    w->tensor = transfer_tile_tensor(p, k);
    t = &p->transfer.tensors[w->tensor];
    whole = box_whole(t->ndim, t->shape);
    box_run(&w->box, &whole, transfer_tile_elements(p, w->tensor), k - p->first_tile[w->tensor]);
    w->n_from = 0;
    w->n_to = extent_index_find(p->to, w->tensor, &w->box, w->to);
    w->n_to = transfer_keep_mine(p, w->tensor, w->to, w->n_to);
    if (w->n_to == 0)
        return;
    if (!p->transfer.mine) /* else all processes have the same tiles, so that one counts a cast */
        trim(p, w);
    w->n_from = extent_index_find(p->from, w->tensor, &w->box, w->from);
    if (p->transfer.partial || p->transfer.mine)
        keep_wanted(p, w);
}

/* Elements of the tile that lie in the extents at these positions. */
static int64_t elements_in(const struct extent_index *x, const struct transfer_tile *w,
                           const int *positions, int n)
{
    int64_t sum = 0;
    struct box part;

    for (int i = 0; i < n; i++)
        if (box_meet(&part, extent_index_box(x, w->tensor, positions[i]), &w->box))
            sum += box_elements(&part);
    return sum;
}

void transfer_tile_bytes(const struct transfer_plan *p, const struct transfer_tile *w,
                         int64_t *read, int64_t *written)
{
    const struct transfer *t = &p->transfer;

    *read = elements_in(p->from, w, w->from, w->n_from) * dtype_bytes(t->from->dtypes[w->tensor]);
    *written = elements_in(p->to, w, w->to, w->n_to) * dtype_bytes(t->to->dtypes[w->tensor]);
}
