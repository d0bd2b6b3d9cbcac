/* reshard/engine/plan.c - proof and sizes of a move; see reshard/engine/transfer.h. */
#include "reshard/engine/plan.h"

#include <stdlib.h>

/* Buffers smaller than this make I/O slow; rather fewer threads, as long as there are several. */
enum { THREAD_BYTES_MIN = 2 << 20 };

/* Elements of a tensor, checked: byte counts of 8-byte elements stay far from overflow. */
static tp_status check_tensor(const struct transfer *m, int t, struct tp_err *err)
{
    const struct reshard_tensor *mt = &m->tensors[t];
    enum dtype from = m->from->dtypes[t], to = m->to->dtypes[t];
    int64_t n = 1;

    if (mt->ndim < 0 || mt->ndim > BOX_NDIM_MAX)
        return tp_fail(err, TP_E_CORRUPT, "tensor %s has %d axes; at most %d are supported",
                       mt->name, mt->ndim, BOX_NDIM_MAX);
    for (int d = 0; d < mt->ndim; d++)
        if (mt->shape[d] < 0 || __builtin_mul_overflow(n, mt->shape[d], &n) || n > INT64_MAX >> 6)
            return tp_fail(err, TP_E_CORRUPT, "tensor %s has an absurd shape: axis %d is %lld",
                           mt->name, d, (long long)mt->shape[d]);
    if (from != to && !(dtype_is_float(from) && dtype_is_float(to)))
        return tp_fail(err, TP_E_USAGE, "tensor %s is %s, which cannot be cast to %s", mt->name,
                       dtype_name(from), dtype_name(to));
    return TP_OK;
}

static tp_status check_disjoint(const struct extent_index *x,
                                const struct reshard_endpoint *endpoint, tp_status kind,
                                const struct reshard_tensor *mt, int t, struct tp_err *err)
{
    char a_text[BOX_TEXT_MAX], b_text[BOX_TEXT_MAX];
    int a, b;

    if (!extent_index_overlap(x, t, &a, &b))
        return TP_OK;
    return tp_fail(err, kind, "%s: tensor %s has an element twice, in the boxes %s and %s",
                   endpoint->name, mt->name, box_format(a_text, extent_index_box(x, t, a)),
                   box_format(b_text, extent_index_box(x, t, b)));
}

/* Disjoint extents tile a tensor when their elements are as many as its own. */
static tp_status check_tiles(const struct transfer_plan *p, int t, struct tp_err *err)
{
    const struct reshard_tensor *mt = &p->move.tensors[t];
    struct box whole = box_whole(mt->ndim, mt->shape);
    int64_t sum = 0;

    for (int i = 0; i < extent_index_count(p->to, t); i++)
        sum += box_elements(extent_index_box(p->to, t, i));
    if (sum == box_elements(&whole))
        return TP_OK;
    return tp_fail(err, TP_E_INTERNAL,
                   "%s: the target's boxes of tensor %s hold %lld elements of %lld",
                   p->move.to->name, mt->name, (long long)sum, (long long)box_elements(&whole));
}

/* The source's extents are disjoint, so they cover a box when their meets with it add up to it. */
static tp_status check_covered(struct transfer_plan *p, int t, int *hits, struct tp_err *err)
{
    const struct reshard_tensor *mt = &p->move.tensors[t];
    char text[BOX_TEXT_MAX];

    for (int i = 0; i < extent_index_count(p->to, t); i++) {
        const struct box *want = extent_index_box(p->to, t, i);
        int n = extent_index_meet(p->from, t, want, hits);
        int64_t sum = 0;
        struct box meet;

        for (int j = 0; j < n; j++)
            if (box_meet(&meet, want, extent_index_box(p->from, t, hits[j])))
                sum += box_elements(&meet);
        if (sum != box_elements(want))
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: tensor %s: of the box %s only %lld of %lld elements are there",
                           p->move.from->name, mt->name, box_format(text, want), (long long)sum,
                           (long long)box_elements(want));
    }
    return TP_OK;
}

static tp_status prove(struct transfer_plan *p, int *hits, struct tp_err *err)
{
    const struct transfer *m = &p->move;
    tp_status st = TP_OK;

    for (int t = 0; t < m->n_tensors; t++) {
        const struct reshard_tensor *mt = &m->tensors[t];

        TP_TRY(check_disjoint(p->to, m->to, TP_E_INTERNAL, mt, t, err));
        TP_TRY(check_disjoint(p->from, m->from, TP_E_CORRUPT, mt, t, err));
        if (!m->partial)
            TP_TRY(check_tiles(p, t, err));
        TP_TRY(check_covered(p, t, hits, err));
    }
done:
    return st;
}

/* Buffer a worker would have with all the memory it can use, and workers. */
static tp_status size_buffers(struct transfer_plan *p, struct tp_err *err)
{
    const struct transfer *m = &p->move;
    int64_t per_worker = m->thread_bytes > 0 ? m->thread_bytes : THREAD_BYTES_MIN;
    int64_t most = 0, least = 1;

    p->threads = m->threads > 1 ? m->threads : 1;
    if (p->threads > m->memory_bytes / per_worker)
        p->threads = (int)(m->memory_bytes / per_worker);
    if (p->threads < 1)
        p->threads = 1;
    p->thread_bytes = m->memory_bytes / p->threads;
    if (m->thread_bytes > p->thread_bytes)
        return tp_fail(err, TP_E_BUDGET, "a buffer of %lld bytes does not fit into %lld",
                       (long long)m->thread_bytes, (long long)m->memory_bytes);
    if (m->thread_bytes > 0)
        p->thread_bytes = m->thread_bytes;
    for (int t = 0; t < m->n_tensors; t++) {
        int64_t need = tile_need(m->from->dtypes[t], m->to->dtypes[t]);
        int64_t bytes = tile_elements(p, t) * need;

        if (need > least)
            least = need;
        if (bytes > most)
            most = bytes;
    }
    if (p->thread_bytes < least)
        return tp_fail(err, TP_E_BUDGET, "moving needs at least %lld bytes of buffers, not %lld",
                       (long long)least, (long long)m->memory_bytes);
    p->thread_bytes = most;
    return TP_OK;
}

static int64_t tensor_tiles(const struct transfer_plan *p, int t)
{
    const struct reshard_tensor *mt = &p->move.tensors[t];
    struct box whole = box_whole(mt->ndim, mt->shape);

    return extent_index_count(p->to, t) > 0 ? box_run_count(&whole, tile_elements(p, t)) : 0;
}

static void number_tiles(struct transfer_plan *p)
{
    for (int t = 0; t < p->move.n_tensors; t++)
        p->first_tile[t + 1] = p->first_tile[t] + tensor_tiles(p, t);
    p->begin = 0;
    p->end = p->first_tile[p->move.n_tensors];
}

/* Bytes of this process's windows, one by one: exact also where a target wants a part. */
static void count_bytes(struct transfer_plan *p, struct tile *w)
{
    p->stats.windows = p->end - p->begin;
    for (int64_t k = p->begin; k < p->end; k++) {
        int64_t read, written;

        tile_get(p, k, w);
        tile_bytes(p, w, &read, &written);
        p->stats.bytes_read += read;
        p->stats.bytes_written += written;
    }
}

/* Deal the windows to the processes of the move: each a range, with about the same bytes. */
static void deal(struct transfer_plan *p, struct tile *w)
{
    int n = p->move.comm ? comm_size(p->move.comm) : 1;
    int rank = p->move.comm ? comm_rank(p->move.comm) : 0;
    int64_t all = p->end, total, seen = 0, begin = all, end = all;

    if (n == 1)
        return;
    count_bytes(p, w);
    total = p->stats.bytes_written;
    p->stats = (struct transfer_stats){ 0 };
    for (int64_t k = 0; k < all; k++) {
        int64_t read, written;
        int owner;

        tile_get(p, k, w);
        tile_bytes(p, w, &read, &written);
        owner = total > 0 ? (int)((double)seen / (double)total * n) : 0;
        if (owner >= n)
            owner = n - 1;
        if (owner == rank && begin == all)
            begin = k;
        if (owner > rank && end == all)
            end = k;
        seen += written;
    }
    p->begin = begin;
    p->end = end > begin ? end : begin;
}

static void count_kinds(struct transfer_plan *p)
{
    for (int t = 0; t < p->move.n_tensors; t++) {
        struct transfer_tensor_stats s;

        transfer_plan_tensor(p, t, &s);
        p->stats.splits += s.split;
        p->stats.merges += s.merge;
        p->stats.copies += s.to > 0 && !s.split && !s.merge;
        for (int i = 0; i < extent_index_count(p->to, t); i++)
            p->stats.bytes_wanted +=
                box_elements(extent_index_box(p->to, t, i)) * dtype_bytes(p->move.from->dtypes[t]);
    }
}

static int most_extents(const struct extent_index *x, int n_tensors)
{
    int most = 1;

    for (int t = 0; t < n_tensors; t++)
        if (extent_index_count(x, t) > most)
            most = extent_index_count(x, t);
    return most;
}

/* Windows must be the same everywhere: all take the least memory and threads that any has. */
static tp_status agree_on_means(struct transfer *m, struct tp_err *err)
{
    int64_t least[2] = { -m->memory_bytes, -m->threads };
    tp_status st;

    if (!m->comm)
        return TP_OK;
    st = comm_all_reduce(m->comm, least, 2, COMM_I64, COMM_MAX, err);
    if (st)
        return st;
    m->memory_bytes = -least[0];
    m->threads = (int)-least[1];
    return TP_OK;
}

static tp_status build(struct transfer_plan *p, struct tp_err *err)
{
    const struct transfer *m = &p->move;
    struct tile w = { 0 };
    tp_status st = TP_OK;

    for (int t = 0; t < m->n_tensors; t++)
        TP_TRY(check_tensor(m, t, err));
    TP_TRY(extent_index_make(&p->from, m->from, m->tensors, m->n_tensors, err));
    TP_TRY(extent_index_make(&p->to, m->to, m->tensors, m->n_tensors, err));
    p->most_from = most_extents(p->from, m->n_tensors);
    p->most_to = most_extents(p->to, m->n_tensors);
    p->first_tile = calloc((size_t)m->n_tensors + 1, sizeof *p->first_tile);
    w.from = calloc((size_t)p->most_from, sizeof *w.from);
    w.to = calloc((size_t)p->most_to, sizeof *w.to);
    if (!p->first_tile || !w.from || !w.to) {
        st = tp_fail(err, TP_E_NOMEM, "no memory for the plan of %d tensors", m->n_tensors);
        goto done;
    }
    TP_TRY(prove(p, w.from, err));
    TP_TRY(size_buffers(p, err));
    number_tiles(p);
    deal(p, &w);
    count_bytes(p, &w);
    count_kinds(p);
    p->stats.buffer_bytes = p->threads * p->thread_bytes;
done:
    free(w.from);
    free(w.to);
    return st;
}

tp_status transfer_plan_make(struct transfer_plan **out, const struct transfer *m,
                             struct tp_err *err)
{
    struct transfer_plan *p = calloc(1, sizeof *p);
    tp_status st;

    if (!p)
        return tp_fail(err, TP_E_NOMEM, "no memory for a plan");
    p->move = *m;
    st = agree_on_means(&p->move, err);
    if (!st)
        st = build(p, err);
    if (m->comm)
        st = comm_agree(m->comm, st, err);
    if (st) {
        transfer_plan_free(p);
        return st;
    }
    *out = p;
    return TP_OK;
}

void transfer_plan_stats(const struct transfer_plan *p, struct transfer_stats *stats)
{
    *stats = p->stats;
}

/* Whether a extent of one index meets several of the other. */
static bool fans(const struct extent_index *one, const struct extent_index *other, int tensor)
{
    for (int i = 0; i < extent_index_count(one, tensor); i++)
        if (extent_index_meet(other, tensor, extent_index_box(one, tensor, i), NULL) > 1)
            return true;
    return false;
}

void transfer_plan_tensor(const struct transfer_plan *p, int tensor,
                          struct transfer_tensor_stats *s)
{
    const struct extent_index *from = p->from, *to = p->to;

    *s = (struct transfer_tensor_stats){
        .from = extent_index_count(from, tensor),
        .to = extent_index_count(to, tensor),
        .cast = p->move.from->dtypes[tensor] != p->move.to->dtypes[tensor],
    };
    s->merge = fans(to, from, tensor);
    s->split = fans(from, to, tensor);
}

int64_t transfer_plan_thread_bytes(const struct transfer_plan *p)
{
    return p->thread_bytes;
}

tp_status transfer_plan_skip(struct transfer_plan *p, int64_t n, struct tp_err *err)
{
    struct tile w = { .from = calloc((size_t)p->most_from, sizeof *w.from),
                      .to = calloc((size_t)p->most_to, sizeof *w.to) };
    tp_status st = TP_OK;

    if (p->move.comm || n < 0 || n > p->end)
        st = tp_fail(err, TP_E_INTERNAL, "%lld of %lld windows cannot be skipped", (long long)n,
                     (long long)p->end);
    else if (!w.from || !w.to)
        st = tp_fail(err, TP_E_NOMEM, "no memory to count windows");
    if (!st) {
        p->begin = n;
        p->stats.bytes_read = p->stats.bytes_written = 0;
        count_bytes(p, &w);
    }
    free(w.from);
    free(w.to);
    return st;
}

void transfer_plan_watch(struct transfer_plan *p, const struct transfer_watch *watch)
{
    p->watch = watch;
}

void transfer_plan_progress(struct transfer_plan *p, struct progress *progress)
{
    p->move.progress = progress;
}

void transfer_plan_free(struct transfer_plan *p)
{
    if (!p)
        return;
    extent_index_free(p->from);
    extent_index_free(p->to);
    free(p->first_tile);
    free(p);
}
