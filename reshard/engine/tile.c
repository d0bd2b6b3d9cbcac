/* reshard/engine/tile.c - cutting tensors into windows; see reshard/engine/plan.h. */
#include "reshard/engine/plan.h"

/* Larger gains nothing in I/O; smaller keeps more of a window in the caches between its read, its
 * checksum, its copy and its write. */
enum { TILE_BYTES = 4 << 20 };

int64_t tile_elements(const struct transfer_plan *p, int tensor)
{
    const struct reshard_tensor *t = &p->move.tensors[tensor];
    struct box whole = box_whole(t->ndim, t->shape);
    enum dtype from = p->move.from->dtypes[tensor], to = p->move.to->dtypes[tensor];
    int64_t widest = dtype_bytes(from) > dtype_bytes(to) ? dtype_bytes(from) : dtype_bytes(to);
    int64_t n = p->thread_bytes / tile_need(from, to);

    if (n > TILE_BYTES / widest)
        n = TILE_BYTES / widest;
    return n < box_elements(&whole) ? n : box_elements(&whole);
}

int64_t tile_need(enum dtype from, enum dtype to)
{
    /* What is read, what is written, and the cast of what is read. */
    return dtype_bytes(from) + dtype_bytes(to) * (from == to ? 1 : 2);
}

/* Tensor of window k: the last whose first window is not after it. */
static int tensor_of(const struct transfer_plan *p, int64_t k)
{
    int low = 0, high = p->move.n_tensors;

    while (low < high) {
        int mid = low + (high - low) / 2;

        if (p->first_tile[mid + 1] > k)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* Leave out the rows before and after what the target wants. Only the axis that is cut in a range
 * may shrink, or the window would no longer be a run. */
static void trim(const struct transfer_plan *p, struct tile *w)
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

static bool is_wanted(const struct transfer_plan *p, const struct tile *w, int from)
{
    struct box part, meet;

    box_meet(&part, extent_index_box(p->from, w->tensor, from), &w->box);
    for (int i = 0; i < w->n_to; i++)
        if (box_meet(&meet, extent_index_box(p->to, w->tensor, w->to[i]), &part))
            return true;
    return false;
}

/* Leave out the sources that no target wants, as all others' columns when one rank resumes. */
static void keep_wanted(const struct transfer_plan *p, struct tile *w)
{
    int kept = 0;

    for (int i = 0; i < w->n_from; i++)
        if (is_wanted(p, w, w->from[i]))
            w->from[kept++] = w->from[i];
    w->n_from = kept;
}

void tile_get(const struct transfer_plan *p, int64_t k, struct tile *w)
{
    const struct reshard_tensor *t;
    struct box whole;

    w->tensor = tensor_of(p, k);
    t = &p->move.tensors[w->tensor];
    whole = box_whole(t->ndim, t->shape);
    box_run(&w->box, &whole, tile_elements(p, w->tensor), k - p->first_tile[w->tensor]);
    w->n_from = 0;
    w->n_to = extent_index_meet(p->to, w->tensor, &w->box, w->to);
    if (w->n_to == 0)
        return;
    trim(p, w);
    w->n_from = extent_index_meet(p->from, w->tensor, &w->box, w->from);
    if (p->move.partial)
        keep_wanted(p, w);
}

/* Elements of the window that lie in extents at these positions. */
static int64_t elements_in(const struct extent_index *x, const struct tile *w, const int *at, int n)
{
    int64_t sum = 0;
    struct box part;

    for (int i = 0; i < n; i++)
        if (box_meet(&part, extent_index_box(x, w->tensor, at[i]), &w->box))
            sum += box_elements(&part);
    return sum;
}

void tile_bytes(const struct transfer_plan *p, const struct tile *w, int64_t *read,
                int64_t *written)
{
    *read =
        elements_in(p->from, w, w->from, w->n_from) * dtype_bytes(p->move.from->dtypes[w->tensor]);
    *written = elements_in(p->to, w, w->to, w->n_to) * dtype_bytes(p->move.to->dtypes[w->tensor]);
}
