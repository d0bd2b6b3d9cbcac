/* reshard/engine/share.c - divides the tiles among the processes of a transfer; see
 * reshard/engine/transfer_plan.h.
 *
 * A target that is not partial has a tile for every element. So the bytes before a tile follow from
 * the shapes of the tensors, and no process needs the extents of another one's tensors.
 */
#include "reshard/engine/transfer_plan.h"

static int64_t elements_of(const struct transfer_plan *p, int t)
{
    const struct reshard_tensor *tensor = &p->transfer.tensors[t];
    const struct box whole = box_whole(tensor->ndim, tensor->shape);

    return box_elements(&whole);
}

static int64_t count_tiles(const struct transfer_plan *p, int t)
{
    const struct reshard_tensor *tensor = &p->transfer.tensors[t];
    const struct box whole = box_whole(tensor->ndim, tensor->shape);

    if (p->transfer.elsewhere && p->transfer.elsewhere[t])
        return 0;
    if (p->transfer.partial ? extent_index_count(p->to, t) == 0 : elements_of(p, t) == 0)
        return 0;
    return box_run_count(&whole, transfer_tile_elements(p, t));
}

/* Bytes that the tiles of a tensor write. */
static int64_t tensor_bytes(const struct transfer_plan *p, int t)
{
    if (p->first_tile[t] == p->first_tile[t + 1])
        return 0;
    return elements_of(p, t) * dtype_bytes(p->transfer.to->dtypes[t]);
}

/* The tensor whose tiles reach `target` bytes, which are counted through all tensors; then *bytes
 * is what the tensors before it write. */
static int tensor_at(const struct transfer_plan *p, int64_t target, int64_t *bytes)
{
    int t = 0;

    for (*bytes = 0; t < p->transfer.n_tensors - 1; t++) {
        const int64_t n = tensor_bytes(p, t);

        if (*bytes + n > target)
            break;
        *bytes += n;
    }
    return t;
}

/* The first tile of process `rank` of n: the first one before which the tiles write at least its
 * fraction of all bytes. */
static int64_t first_tile_of(const struct transfer_plan *p, int rank, int n, int64_t total)
{
    const int64_t target = total / n * rank + total % n * rank / n;
    int64_t before, tile_bytes;
    int t;

    if (rank == 0 || total == 0)
        return 0;
    if (rank == n)
        return p->first_tile[p->transfer.n_tensors];
    t = tensor_at(p, target, &before);
    tile_bytes = transfer_tile_elements(p, t) * dtype_bytes(p->transfer.to->dtypes[t]);
    return p->first_tile[t] + (target - before + tile_bytes - 1) / tile_bytes;
}

/* The tensors that have a tile of this process, and those without tiles whose place among the tiles
 * is in its range; behind the last tile it is that of the last process. */
static void find_tensors(struct transfer_plan *p, bool is_last)
{
    int t = 0;

    while (t < p->transfer.n_tensors && p->first_tile[t] < p->begin &&
           p->first_tile[t + 1] <= p->begin)
        t++;
    p->tensors_begin = t;
    while (t < p->transfer.n_tensors && (is_last || p->first_tile[t] < p->end))
        t++;
    p->tensors_end = t;
}

bool transfer_is_shared(const struct transfer_plan *p)
{
    const struct transfer *t = &p->transfer;

    return control_size(t->control) > 1 && !t->partial && !t->mine;
}

bool transfer_share_counts(const struct transfer_plan *p, int t)
{
    return p->first_tile[t] >= p->begin;
}

void transfer_share_make(struct transfer_plan *p)
{
    const int n = transfer_is_shared(p) ? control_size(p->transfer.control) : 1;
    const int rank = n > 1 ? control_rank(p->transfer.control) : 0;
    int64_t total = 0;

    for (int t = 0; t < p->transfer.n_tensors; t++) {
        p->first_tile[t + 1] = p->first_tile[t] + count_tiles(p, t);
        total += tensor_bytes(p, t);
    }
    p->begin = first_tile_of(p, rank, n, total);
    p->end = first_tile_of(p, rank + 1, n, total);
    find_tensors(p, rank == n - 1);
}
