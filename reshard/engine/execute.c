/* reshard/engine/execute.c - windows through a worker's buffer; see reshard/engine/transfer.h. */
#include <stdatomic.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/thread_pool.h"
#include "kernels/cast.h"
#include "kernels/copy.h"
#include "reshard/engine/plan.h"

enum { ALIGN = 64 };

/*
 * A worker's buffer holds, one after the other, for the window it works on: the run that is being
 * read, its cast when types differ, and the runs of all targets that several sources feed. What
 * one extent holds contiguously for one other is written from where it was read, or read to where
 * it will be written from, without a copy.
 */
struct worker {
    char *buffer;
    struct tile w;
    int *hits;                /* positions of the targets that a source's run meets */
    int64_t *place;           /* [position of a target]: its run's offset in `runs`; -1: none */
    char *read, *cast, *runs; /* the parts of the buffer, for this window */
    int64_t runs_used;
    bool is_cast; /* what is read has been cast */
};

struct execution {
    const struct transfer_plan *p;
    struct worker *workers;
    int64_t first; /* window of the round */
    atomic_llong bytes_read, bytes_written;
};

/* A source's run and a target's, both within the window, and what they have in common. */
struct meeting {
    int tensor, from, to; /* positions */
    struct box from_run, to_run, common;
    enum dtype from_type, to_type;
};

static struct box run_of(const struct extent_index *x, const struct tile *w, int position)
{
    struct box run;

    box_meet(&run, extent_index_box(x, w->tensor, position), &w->box); /* they do meet */
    return run;
}

static int64_t bytes_of(const struct box *b, enum dtype type)
{
    return box_elements(b) * dtype_bytes(type);
}

static tp_status read_run(struct execution *e, const struct meeting *m, void *buf,
                          struct tp_err *err)
{
    const struct reshard_endpoint *endpoint = e->p->move.from;

    atomic_fetch_add(&e->bytes_read, bytes_of(&m->from_run, m->from_type));
    return endpoint->read(endpoint->ctx, extent_index_number(e->p->from, m->tensor, m->from),
                          &m->from_run, buf, err);
}

static tp_status write_run(struct execution *e, const struct meeting *m, const void *buf,
                           struct tp_err *err)
{
    const struct reshard_endpoint *endpoint = e->p->move.to;
    int64_t n = bytes_of(&m->to_run, m->to_type);
    tp_status st = endpoint->write(endpoint->ctx, extent_index_number(e->p->to, m->tensor, m->to),
                                   &m->to_run, buf, err);

    if (!st) {
        atomic_fetch_add(&e->bytes_written, n);
        progress_add(e->p->move.progress, n);
    }
    return st;
}

/* Where the target's run is gathered; it gets its place at the first call. */
static char *place_of(struct worker *k, const struct meeting *m)
{
    if (k->place[m->to] < 0) {
        k->place[m->to] = k->runs_used;
        k->runs_used += bytes_of(&m->to_run, m->to_type);
    }
    return k->runs + k->place[m->to];
}

/* All of the source's run goes to one place in the target's. */
static bool lands_whole(const struct meeting *m)
{
    return m->from_type == m->to_type && box_contains(&m->to_run, &m->from_run) &&
           box_is_run_in(&m->to_run, &m->from_run);
}

/* All of the target's run lies in one place of the source's. */
static bool leaves_whole(const struct meeting *m)
{
    return m->from_type == m->to_type && box_contains(&m->from_run, &m->to_run) &&
           box_is_run_in(&m->from_run, &m->to_run);
}

/* Put what they have in common from the source's run, which was read, into the target's. */
static void gather(struct worker *k, const struct meeting *m, const char *data)
{
    const int from_bytes = dtype_bytes(m->from_type), to_bytes = dtype_bytes(m->to_type);
    char *to = place_of(k, m);

    if (m->from_type == m->to_type) {
        copy_box(to, &m->to_run, data, &m->from_run, &m->common, from_bytes);
        return;
    }
    if (box_is_run_in(&m->from_run, &m->common) && box_is_run_in(&m->to_run, &m->common)) {
        cast(to + box_offset_in(&m->to_run, &m->common) * to_bytes, m->to_type,
             data + box_offset_in(&m->from_run, &m->common) * from_bytes, m->from_type,
             box_elements(&m->common));
        return;
    }
    if (!k->is_cast)
        cast(k->cast, m->to_type, data, m->from_type, box_elements(&m->from_run));
    k->is_cast = true;
    copy_box(to, &m->to_run, k->cast, &m->from_run, &m->common, to_bytes);
}

/* Read one source's run and give every target what it wants of it. */
static tp_status move_source(struct execution *e, struct worker *k, struct meeting *m,
                             struct tp_err *err)
{
    const struct tile *w = &k->w;
    tp_status st = TP_OK;
    char *data = k->read;
    int n;

    m->from_run = run_of(e->p->from, w, m->from);
    n = extent_index_meet(e->p->to, w->tensor, &m->from_run, k->hits);
    if (n == 1) {
        m->to = k->hits[0];
        m->to_run = run_of(e->p->to, w, m->to);
        if (lands_whole(m) && !box_equal(&m->from_run, &m->to_run)) {
            data = place_of(k, m);
            data += box_offset_in(&m->to_run, &m->from_run) * dtype_bytes(m->to_type);
            return read_run(e, m, data, err);
        }
    }
    TP_TRY(read_run(e, m, data, err));
    k->is_cast = false;
    for (int i = 0; i < n; i++) {
        m->to = k->hits[i];
        m->to_run = run_of(e->p->to, w, m->to);
        box_meet(&m->common, &m->from_run, &m->to_run);
        if (leaves_whole(m))
            TP_TRY(write_run(
                e, m, data + box_offset_in(&m->from_run, &m->to_run) * dtype_bytes(m->from_type),
                err));
        else
            gather(k, m, data);
    }
done:
    return st;
}

static int64_t aligned(int64_t n_bytes)
{
    return (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void divide_buffer(const struct execution *e, struct worker *k)
{
    enum dtype from = e->p->move.from->dtypes[k->w.tensor];
    enum dtype to = e->p->move.to->dtypes[k->w.tensor];
    int64_t n = box_elements(&k->w.box);

    k->read = k->buffer;
    k->cast = k->read + aligned(n * dtype_bytes(from));
    k->runs = k->cast + (from == to ? 0 : aligned(n * dtype_bytes(to)));
    k->runs_used = 0;
}

static tp_status move_tile(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct execution *e = ctx;
    struct worker *k = &e->workers[worker];
    struct tile *w = &k->w;
    struct meeting m;
    tp_status st = TP_OK;

    tile_get(e->p, e->first + item, w);
    divide_buffer(e, k);
    m.tensor = w->tensor;
    m.from_type = e->p->move.from->dtypes[w->tensor];
    m.to_type = e->p->move.to->dtypes[w->tensor];
    for (int i = 0; i < w->n_to; i++)
        k->place[w->to[i]] = -1;
    for (int i = 0; i < w->n_from; i++) {
        m.from = w->from[i];
        TP_TRY(move_source(e, k, &m, err));
    }
    for (int i = 0; i < w->n_to; i++) {
        m.to = w->to[i];
        if (k->place[m.to] < 0)
            continue; /* written on the way */
        m.to_run = run_of(e->p->to, w, m.to);
        TP_TRY(write_run(e, &m, k->runs + k->place[m.to], err));
    }
done:
    return st;
}

static void free_workers(struct worker *workers, int n)
{
    for (int i = 0; workers && i < n; i++) {
        free(workers[i].buffer);
        free(workers[i].w.from);
        free(workers[i].w.to);
        free(workers[i].hits);
        free(workers[i].place);
    }
    free(workers);
}

static tp_status make_workers(struct worker **out, const struct transfer_plan *p,
                              struct tp_err *err)
{
    struct worker *workers = calloc((size_t)p->threads, sizeof *workers);
    bool ok = workers != NULL;

    for (int i = 0; ok && i < p->threads; i++) {
        struct worker *k = &workers[i];

        k->buffer = aligned_alloc(ALIGN, (size_t)aligned(p->thread_bytes) + 2 * ALIGN);
        k->w.from = calloc((size_t)p->most_from, sizeof *k->w.from);
        k->w.to = calloc((size_t)p->most_to, sizeof *k->w.to);
        k->hits = calloc((size_t)p->most_to, sizeof *k->hits);
        k->place = calloc((size_t)p->most_to, sizeof *k->place);
        ok = k->buffer && k->w.from && k->w.to && k->hits && k->place;
    }
    if (!ok) {
        free_workers(workers, p->threads);
        return tp_fail(err, TP_E_NOMEM, "no memory for %d buffers of %lld bytes", p->threads,
                       (long long)p->thread_bytes);
    }
    *out = workers;
    return TP_OK;
}

/* All windows, in rounds whose number of windows is led to take about as long as they should. At a
 * round's end threads wait for the last one, which long rounds make up for. */
static tp_status move_rounds(struct execution *e, struct tp_err *err)
{
    const struct transfer_plan *p = e->p;
    int64_t n = p->watch ? p->threads : p->end - p->begin;
    tp_status st = TP_OK;

    for (e->first = p->begin; !st && e->first < p->end;) {
        int64_t left = p->end - e->first;
        double start = clock_seconds(), seconds;

        n = n < left ? n : left;
        st = thread_pool_run(move_tile, e, n, p->threads, err);
        e->first += n;
        if (st || !p->watch || e->first == p->end)
            break; /* unwatched, one round is all */
        seconds = clock_seconds() - start;
        st = p->watch->between(p->watch->ctx, e->first, err);
        if (seconds < p->watch->round_s / 2)
            n *= 2;
        else if (seconds > p->watch->round_s * 2 && n / 2 >= p->threads)
            n /= 2;
    }
    return st;
}

static tp_status check_source(const struct transfer *m, struct tp_err *err)
{
    tp_status st = m->from->check ? m->from->check(m->from->ctx, err) : TP_OK;

    return m->comm ? comm_agree(m->comm, st, err) : st;
}

tp_status transfer_execute(struct transfer_plan *p, struct transfer_stats *stats,
                           struct tp_err *err)
{
    struct execution e = { .p = p };
    tp_status st = make_workers(&e.workers, p, err);

    if (!st)
        st = move_rounds(&e, err);
    free_workers(e.workers, p->threads);
    if (p->move.comm)
        st = comm_agree(p->move.comm, st, err);
    if (!st)
        st = check_source(&p->move, err);
    *stats = p->stats;
    stats->bytes_read = atomic_load(&e.bytes_read);
    stats->bytes_written = atomic_load(&e.bytes_written);
    return st;
}
