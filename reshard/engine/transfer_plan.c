/* reshard/engine/transfer_plan.c - proves and sizes a transfer; see reshard/engine/transfer.h. */
#include "reshard/engine/transfer_plan.h"

#include <stdlib.h>

#include "core/size.h"

/* The buffer of a thread: a tile of 1 MiB as it is read, and as it is written. A larger one makes
 * I/O no faster, but does not stay in the thread's cache between its read, its checksums, its copy
 * and its write. A smaller one makes I/O slow; then fewer threads are better. */
enum { THREAD_BYTES = 2 << 20 };

/* ---- proof ---- */

/* Check that element counts are far from overflow, and that the types can be cast. */
static tp_status check_tensor(const struct transfer *t, int i, struct tp_err *err)
{
    const struct reshard_tensor *tensor = &t->tensors[i];
    enum dtype from = t->from->dtypes[i], to = t->to->dtypes[i];
    int64_t n = 1;

    if (tensor->ndim < 0 || tensor->ndim > BOX_NDIM_MAX)
        return tp_fail(err, TP_E_CORRUPT, "tensor %s has %d axes; at most %d are supported",
                       tensor->name, tensor->ndim, BOX_NDIM_MAX);
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] < 0 || __builtin_mul_overflow(n, tensor->shape[d], &n) ||
            n > INT64_MAX >> 6)
            return tp_fail(err, TP_E_CORRUPT,
                           "tensor %s is negative or too large in axis %d, whose length is %lld",
                           tensor->name, d, (long long)tensor->shape[d]);
    if (from != to && !(dtype_is_float(from) && dtype_is_float(to)))
        return tp_fail(err, TP_E_USAGE, "tensor %s is %s, which cannot be cast to %s", tensor->name,
                       dtype_name(from), dtype_name(to));
    return TP_OK;
}

static tp_status check_disjoint(const struct extent_index *x,
                                const struct reshard_endpoint *endpoint, tp_status kind,
                                const struct reshard_tensor *tensor, int t, struct tp_err *err)
{
    char a_text[BOX_TEXT_MAX], b_text[BOX_TEXT_MAX];
    int a, b;

    if (!extent_index_overlap(x, t, &a, &b))
        return TP_OK;
    return tp_fail(err, kind, "%s: tensor %s: the boxes %s and %s overlap", endpoint->name,
                   tensor->name, box_format(a_text, extent_index_box(x, t, a)),
                   box_format(b_text, extent_index_box(x, t, b)));
}

/* Disjoint extents tile a tensor when they have as many elements as it has. */
static tp_status check_tiles(const struct transfer_plan *p, int t, struct tp_err *err)
{
    const struct reshard_tensor *tensor = &p->transfer.tensors[t];
    struct box whole = box_whole(tensor->ndim, tensor->shape);
    int64_t sum = 0;

    for (int i = 0; i < extent_index_count(p->to, t); i++)
        sum += box_elements(extent_index_box(p->to, t, i));
    if (sum == box_elements(&whole))
        return TP_OK;
    return tp_fail(
        err, TP_E_INTERNAL, "%s: tensor %s: the boxes to write have %lld elements, expected %lld",
        p->transfer.to->name, tensor->name, (long long)sum, (long long)box_elements(&whole));
}

/* The source's extents are disjoint, so they cover a box when their overlaps with it have as many
 * elements as it has. */
static tp_status check_covered(struct transfer_plan *p, int t, int *found, struct tp_err *err)
{
    char text[BOX_TEXT_MAX];

    for (int i = 0; i < extent_index_count(p->to, t); i++) {
        const struct box *want = extent_index_box(p->to, t, i);
        int n = extent_index_find(p->from, t, want, found);
        int64_t sum = 0;
        struct box overlap;

        for (int j = 0; j < n; j++)
            if (box_meet(&overlap, want, extent_index_box(p->from, t, found[j])))
                sum += box_elements(&overlap);
        if (sum != box_elements(want))
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: tensor %s: only %lld of the %lld elements of the box %s exist",
                           p->transfer.from->name, p->transfer.tensors[t].name, (long long)sum,
                           (long long)box_elements(want), box_format(text, want));
    }
    return TP_OK;
}

static tp_status prove(struct transfer_plan *p, int *found, struct tp_err *err)
{
    const struct transfer *t = &p->transfer;
    tp_status st = TP_OK;

    for (int i = p->tensors_begin; i < p->tensors_end; i++) {
        const struct reshard_tensor *tensor = &t->tensors[i];

        TP_TRY(check_disjoint(p->to, t->to, TP_E_INTERNAL, tensor, i, err));
        TP_TRY(check_disjoint(p->from, t->from, TP_E_CORRUPT, tensor, i, err));
        if (!t->partial)
            TP_TRY(check_tiles(p, i, err));
        TP_TRY(check_covered(p, i, found, err));
    }
done:
    return st;
}

/* ---- sizes ---- */

/* Pinned memory for a device, and as much of the device's. More than 64 MiB for each of its batches
 * make no transfer faster; less than the minimum has no room for useful tables. */
enum { RING_MAX = 3 * (64 << 20), RING_MIN = TRANSFER_DEVICE_MIN };

static tp_status ring_memory(int64_t *out, const struct transfer *t, struct tp_err *err)
{
    int64_t n = t->memory_bytes / 4 * 3; /* the rest is for the buffers of threads */
    char given[SIZE_TEXT_MAX], least[SIZE_TEXT_MAX];

    if (t->device->memory_bytes < RING_MIN)
        return tp_fail(err, TP_E_BUDGET, "--device-mem %s is too little; at least %s is needed",
                       size_format(given, t->device->memory_bytes), size_format(least, RING_MIN));
    n = n < t->device->memory_bytes ? n : t->device->memory_bytes;
    *out = n < RING_MAX ? n : RING_MAX;
    return TP_OK;
}

/* Choose the threads, and the buffer that each could have with all of the memory that the device
 * does not need. */
static tp_status divide_memory(struct transfer_plan *p, struct tp_err *err)
{
    const struct transfer *t = &p->transfer;
    int64_t per_thread = t->thread_bytes > 0 ? t->thread_bytes : THREAD_BYTES, memory_bytes;
    tp_status st = t->device ? ring_memory(&p->ring_bytes, t, err) : TP_OK;

    if (st)
        return st;
    memory_bytes = t->memory_bytes - p->ring_bytes;
    p->threads = t->threads > 1 ? t->threads : 1;
    if (p->threads > memory_bytes / per_thread)
        p->threads = (int)(memory_bytes / per_thread);
    if (p->threads < 1)
        p->threads = 1;
    p->thread_bytes = memory_bytes / p->threads;
    if (t->thread_bytes > p->thread_bytes)
        return tp_fail(err, TP_E_BUDGET, "a buffer of %lld bytes does not fit into %lld",
                       (long long)t->thread_bytes, (long long)memory_bytes);
    if (t->thread_bytes > 0)
        p->thread_bytes = t->thread_bytes;
    else if (p->thread_bytes > THREAD_BYTES)
        p->thread_bytes = THREAD_BYTES;
    return TP_OK;
}

/* Size the buffers: for the largest tile, or TP_E_BUDGET when a tile of one element does not
 * fit. */
static tp_status size_buffers(struct transfer_plan *p, struct tp_err *err)
{
    const struct transfer *t = &p->transfer;
    int64_t most = 0, least = 1;
    tp_status st = divide_memory(p, err);

    if (st)
        return st;
    for (int i = 0; i < t->n_tensors; i++) {
        int64_t need = transfer_tile_need(t->from->dtypes[i], t->to->dtypes[i]);
        int64_t bytes = transfer_tile_elements(p, i) * need;

        if (need > least)
            least = need;
        if (bytes > most)
            most = bytes;
    }
    if (p->thread_bytes < least)
        return tp_fail(err, TP_E_BUDGET,
                       "the buffers need at least %lld bytes, but only %lld are left for them",
                       (long long)least, (long long)t->memory_bytes);
    p->thread_bytes = most;
    return TP_OK;
}

/* A ring in which each slot has room for all that is copied need not be larger. */
static void shrink_ring(struct transfer_plan *p)
{
    const int64_t all = p->stats.bytes_read + p->stats.bytes_written;

    if (all < RING_MAX && RING_MIN + 6 * all < p->ring_bytes) /* three slots with two buffers */
        p->ring_bytes = RING_MIN + 6 * all;
}

/* ---- tiles ---- */

/* Bytes of this process's tiles, one by one, so that the sum is exact for a partial target too. */
static void count_bytes(struct transfer_plan *p, struct transfer_tile *tile)
{
    p->stats.tiles = p->end - p->begin;
    for (int64_t number = p->begin; number < p->end; number++) {
        int64_t read, written;

        transfer_tile_get(p, number, tile);
        p->stats.tiles -= p->transfer.mine && tile->n_to == 0;
        transfer_tile_bytes(p, tile, &read, &written);
        p->stats.bytes_read += read;
        p->stats.bytes_written += written;
    }
}

/* ---- making ---- */

static int max_extents(const struct extent_index *x, int n_tensors)
{
    int most = 1;

    for (int t = 0; t < n_tensors; t++)
        if (extent_index_count(x, t) > most)
            most = extent_index_count(x, t);
    return most;
}

/* All processes must cut the same tiles, so they use the smallest memory and the fewest threads of
 * any of them. */
static tp_status agree_on_limits(struct transfer *t, struct tp_err *err)
{
    int64_t least[2] = { -t->memory_bytes, -t->threads };
    tp_status st;

    if (!t->control)
        return TP_OK;
    st = control_max_i64(t->control, least, 2, err);
    if (st)
        return st;
    t->memory_bytes = -least[0];
    t->threads = (int)-least[1];
    return TP_OK;
}

/* Digests of casts, if there are any to prove. */
static tp_status make_cast_digests(struct transfer_plan *p, struct tp_err *err)
{
    const struct transfer *t = &p->transfer;
    bool any = false;

    for (int i = 0; i < t->n_tensors; i++)
        any = any || t->from->dtypes[i] != t->to->dtypes[i];
    if (!any || t->partial)
        return TP_OK;
    p->cast_digests = calloc(2 * (size_t)t->n_tensors, sizeof *p->cast_digests);
    return p->cast_digests ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for digests");
}

/* A shared transfer is divided first, so that each process indexes only its tensors. A target that
 * is partial has no tiles of tensors without extents, which its index shows. */
static tp_status make_indexes(struct transfer_plan *p, struct tp_err *err)
{
    const struct transfer *t = &p->transfer;
    struct extent_index_tensors which = { t->tensors, t->n_tensors, 0, t->n_tensors };
    tp_status st;

    if (transfer_is_shared(p)) {
        transfer_share_make(p);
        which.begin = p->tensors_begin;
        which.end = p->tensors_end;
    }
    TP_TRY(extent_index_make_of(&p->from, t->from, &which, err));
    TP_TRY(extent_index_make_of(&p->to, t->to, &which, err));
    if (!transfer_is_shared(p))
        transfer_share_make(p);
done:
    return st;
}

static tp_status build(struct transfer_plan *p, struct tp_err *err)
{
    const struct transfer *t = &p->transfer;
    struct transfer_tile tile = { 0 };
    tp_status st = TP_OK;

    for (int i = 0; i < t->n_tensors; i++) {
        TP_TRY(check_tensor(t, i, err));
        p->narrows |= t->to->dtypes[i] == DTYPE_F16 && t->from->dtypes[i] != DTYPE_F16;
    }
    p->first_tile = calloc((size_t)t->n_tensors + 1, sizeof *p->first_tile);
    if (!p->first_tile)
        return tp_fail(err, TP_E_NOMEM, "no memory for the plan of %d tensors", t->n_tensors);
    TP_TRY(size_buffers(p, err));
    TP_TRY(make_indexes(p, err));
    p->max_from = max_extents(p->from, t->n_tensors);
    p->max_to = max_extents(p->to, t->n_tensors);
    TP_TRY(make_cast_digests(p, err));
    TP_TRY(transfer_tile_make(&tile, p, err));
    TP_TRY(prove(p, tile.from, err));
    count_bytes(p, &tile);
    shrink_ring(p);
    transfer_kinds_count(p);
    p->stats.buffer_bytes = p->threads * p->thread_bytes + p->ring_bytes;
done:
    transfer_tile_free(&tile);
    return st;
}

tp_status transfer_plan_make(struct transfer_plan **out, const struct transfer *t,
                             struct tp_err *err)
{
    struct transfer_plan *p = calloc(1, sizeof *p);
    tp_status st;

    if (!p)
        return tp_fail(err, TP_E_NOMEM, "no memory for a plan");
    pthread_mutex_init(&p->lock, NULL);
    p->transfer = *t;
    st = agree_on_limits(&p->transfer, err);
    if (!st)
        st = build(p, err);
    st = control_agree(t->control, st, err);
    if (!st && transfer_is_shared(p))
        st = transfer_kinds_add_up(p, err);
    if (st) {
        transfer_plan_free(p);
        return st;
    }
    *out = p;
    return TP_OK;
}

void transfer_plan_free(struct transfer_plan *p)
{
    if (!p)
        return;
    extent_index_free(p->from);
    extent_index_free(p->to);
    free(p->first_tile);
    free(p->cast_digests);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---- what a plan says ---- */

void transfer_plan_stats(const struct transfer_plan *p, struct transfer_stats *stats)
{
    *stats = p->stats;
}

int64_t transfer_plan_thread_bytes(const struct transfer_plan *p)
{
    return p->thread_bytes;
}

struct reshard_sums transfer_plan_cast_sums(struct transfer_plan *p)
{
    return (struct reshard_sums){ p->cast_digests,
                                  p->cast_digests ? 2 * (int64_t)p->transfer.n_tensors : 0 };
}

tp_status transfer_plan_skip(struct transfer_plan *p, int64_t n, struct tp_err *err)
{
    struct transfer_tile tile;
    tp_status st;

    if (p->transfer.control || n < 0 || n > p->end)
        return tp_fail(err, TP_E_INTERNAL, "%lld of %lld tiles cannot be skipped", (long long)n,
                       (long long)p->end);
    st = transfer_tile_make(&tile, p, err);
    if (!st) {
        p->begin = n;
        p->stats.bytes_read = p->stats.bytes_written = 0;
        count_bytes(p, &tile);
    }
    transfer_tile_free(&tile);
    return st;
}
