/* reshard/engine/execute.c - copies tiles through the buffers of threads; see
 * reshard/engine/transfer.h. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/thread_pool.h"
#include "kernels/cast.h"
#include "kernels/copy.h"
#include "reshard/engine/transfer_plan.h"

enum { ALIGN = 64 };

/*
 * The buffer of a thread has three parts for the tile that the thread works on: the run that is
 * read from the source, the same run after a cast, and the runs of all targets that are gathered
 * from several sources. A run that one extent holds contiguously for one other extent needs no
 * copy: it is written from where it was read, or read to where it will be written from.
 */
struct transfer_worker {
    char *buffer;
    struct transfer_tile tile;
    int *targets;         /* positions of the targets that overlap the source's run */
    int64_t *gathered_at; /* [position of a target] offset of its run in `gathered`, or -1 */
    char *read, *cast, *gathered; /* the parts of the buffer, for this tile */
    int64_t gathered_bytes;
    bool is_cast; /* `cast` holds the run that was read */
};

struct transfer_run {
    struct transfer_plan *plan;
    struct transfer_worker *workers;
    int64_t next;       /* the first tile that is left */
    int64_t round_size; /* tiles of the next round */
    atomic_llong bytes_read, bytes_written;
};

/* The runs of a source extent and of a target extent in a tile, and their overlap. */
struct transfer_overlap {
    int tensor, from, to; /* positions */
    struct box from_run, to_run, common;
    enum dtype from_type, to_type;
};

/* ---- one tile ---- */

static struct box run_of(const struct extent_index *x, const struct transfer_tile *w, int position)
{
    struct box run;

    box_meet(&run, extent_index_box(x, w->tensor, position), &w->box); /* they do overlap */
    return run;
}

static int64_t bytes_of(const struct box *b, enum dtype type)
{
    return box_elements(b) * dtype_bytes(type);
}

static tp_status read_run(struct transfer_run *r, const struct transfer_overlap *o, void *buf,
                          struct tp_err *err)
{
    const struct reshard_endpoint *from = r->plan->transfer.from;

    atomic_fetch_add(&r->bytes_read, bytes_of(&o->from_run, o->from_type));
    return from->read(from->ctx, extent_index_number(r->plan->from, o->tensor, o->from),
                      &o->from_run, buf, err);
}

static tp_status write_run(struct transfer_run *r, const struct transfer_overlap *o,
                           const void *buf, struct tp_err *err)
{
    const struct reshard_endpoint *to = r->plan->transfer.to;
    int64_t n = bytes_of(&o->to_run, o->to_type);
    tp_status st = to->write(to->ctx, extent_index_number(r->plan->to, o->tensor, o->to),
                             &o->to_run, buf, err);

    if (!st) {
        atomic_fetch_add(&r->bytes_written, n);
        progress_add(r->plan->transfer.progress, n);
    }
    return st;
}

/* Where the target's run is gathered. The first call for a target reserves the bytes. */
static char *gathered_run(struct transfer_worker *k, const struct transfer_overlap *o)
{
    if (k->gathered_at[o->to] < 0) {
        k->gathered_at[o->to] = k->gathered_bytes;
        k->gathered_bytes += bytes_of(&o->to_run, o->to_type);
    }
    return k->gathered + k->gathered_at[o->to];
}

/* Whether the source's run is contiguous within the target's run. */
static bool source_is_part(const struct transfer_overlap *o)
{
    return o->from_type == o->to_type && box_contains(&o->to_run, &o->from_run) &&
           box_is_run_in(&o->to_run, &o->from_run);
}

/* Whether the target's run is contiguous within the source's run. */
static bool target_is_part(const struct transfer_overlap *o)
{
    return o->from_type == o->to_type && box_contains(&o->from_run, &o->to_run) &&
           box_is_run_in(&o->from_run, &o->to_run);
}

/* Copy the overlap from `data`, the source's run, into the target's run. */
static void gather(struct transfer_worker *k, const struct transfer_overlap *o, const char *data)
{
    const int from_bytes = dtype_bytes(o->from_type), to_bytes = dtype_bytes(o->to_type);
    char *to = gathered_run(k, o);

    if (o->from_type == o->to_type) {
        copy_box(to, &o->to_run, data, &o->from_run, &o->common, from_bytes);
        return;
    }
    if (box_is_run_in(&o->from_run, &o->common) && box_is_run_in(&o->to_run, &o->common)) {
        cast(to + box_offset_in(&o->to_run, &o->common) * to_bytes, o->to_type,
             data + box_offset_in(&o->from_run, &o->common) * from_bytes, o->from_type,
             box_elements(&o->common));
        return;
    }
    if (!k->is_cast)
        cast(k->cast, o->to_type, data, o->from_type, box_elements(&o->from_run));
    k->is_cast = true;
    copy_box(to, &o->to_run, k->cast, &o->from_run, &o->common, to_bytes);
}

/* Read the run of one source extent and give each target its part. */
static tp_status move_source(struct transfer_run *r, struct transfer_worker *k,
                             struct transfer_overlap *o, struct tp_err *err)
{
    const struct transfer_tile *w = &k->tile;
    tp_status st = TP_OK;
    int n;

    o->from_run = run_of(r->plan->from, w, o->from);
    n = extent_index_find(r->plan->to, w->tensor, &o->from_run, k->targets);
    if (n == 1) {
        o->to = k->targets[0];
        o->to_run = run_of(r->plan->to, w, o->to);
        if (source_is_part(o) && !box_equal(&o->from_run, &o->to_run)) {
            int64_t at = box_offset_in(&o->to_run, &o->from_run) * dtype_bytes(o->to_type);

            return read_run(r, o, gathered_run(k, o) + at, err);
        }
    }
    TP_TRY(read_run(r, o, k->read, err));
    k->is_cast = false;
    for (int i = 0; i < n; i++) {
        o->to = k->targets[i];
        o->to_run = run_of(r->plan->to, w, o->to);
        box_meet(&o->common, &o->from_run, &o->to_run);
        if (target_is_part(o)) {
            int64_t at = box_offset_in(&o->from_run, &o->to_run) * dtype_bytes(o->from_type);

            TP_TRY(write_run(r, o, k->read + at, err));
        } else {
            gather(k, o, k->read);
        }
    }
done:
    return st;
}

static int64_t aligned(int64_t n_bytes)
{
    return (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void divide_buffer(const struct transfer_run *r, struct transfer_worker *k)
{
    enum dtype from = r->plan->transfer.from->dtypes[k->tile.tensor];
    enum dtype to = r->plan->transfer.to->dtypes[k->tile.tensor];
    int64_t n = box_elements(&k->tile.box);

    k->read = k->buffer;
    k->cast = k->read + aligned(n * dtype_bytes(from));
    k->gathered = k->cast + (from == to ? 0 : aligned(n * dtype_bytes(to)));
    k->gathered_bytes = 0;
}

/* A thread_pool_fn: item counts from the first tile of the round. */
static tp_status move_tile(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct transfer_run *r = ctx;
    struct transfer_worker *k = &r->workers[worker];
    struct transfer_tile *w = &k->tile;
    struct transfer_overlap o = { 0 };
    tp_status st = TP_OK;

    transfer_tile_get(r->plan, r->next + item, w);
    divide_buffer(r, k);
    o.tensor = w->tensor;
    o.from_type = r->plan->transfer.from->dtypes[w->tensor];
    o.to_type = r->plan->transfer.to->dtypes[w->tensor];
    for (int i = 0; i < w->n_to; i++)
        k->gathered_at[w->to[i]] = -1;
    for (int i = 0; i < w->n_from; i++) {
        o.from = w->from[i];
        TP_TRY(move_source(r, k, &o, err));
    }
    for (int i = 0; i < w->n_to; i++) {
        o.to = w->to[i];
        if (k->gathered_at[o.to] < 0)
            continue; /* already written by move_source */
        o.to_run = run_of(r->plan->to, w, o.to);
        TP_TRY(write_run(r, &o, k->gathered + k->gathered_at[o.to], err));
    }
done:
    return st;
}

/* ---- all tiles ---- */

static void free_workers(struct transfer_worker *workers, int n)
{
    for (int i = 0; workers && i < n; i++) {
        free(workers[i].buffer);
        free(workers[i].tile.from);
        free(workers[i].tile.to);
        free(workers[i].targets);
        free(workers[i].gathered_at);
    }
    free(workers);
}

static tp_status make_workers(struct transfer_worker **out, const struct transfer_plan *p,
                              struct tp_err *err)
{
    struct transfer_worker *workers = calloc((size_t)p->threads, sizeof *workers);
    const size_t max_from = (size_t)p->max_from, max_to = (size_t)p->max_to;
    bool ok = workers != NULL;

    for (int i = 0; ok && i < p->threads; i++) {
        struct transfer_worker *k = &workers[i];

        k->buffer = aligned_alloc(ALIGN, (size_t)aligned(p->thread_bytes) + 2 * ALIGN);
        k->tile.from = calloc(max_from, sizeof *k->tile.from);
        k->tile.to = calloc(max_to, sizeof *k->tile.to);
        k->targets = calloc(max_to, sizeof *k->targets);
        k->gathered_at = calloc(max_to, sizeof *k->gathered_at);
        ok = k->buffer && k->tile.from && k->tile.to && k->targets && k->gathered_at;
    }
    if (!ok) {
        free_workers(workers, p->threads);
        return tp_fail(err, TP_E_NOMEM, "no memory for %d buffers of %lld bytes", p->threads,
                       (long long)p->thread_bytes);
    }
    *out = workers;
    return TP_OK;
}

static tp_status agree(const struct transfer_plan *p, tp_status st, struct tp_err *err)
{
    return p->transfer.control ? control_agree(p->transfer.control, st, err) : st;
}

static void run_free(struct transfer_run *run)
{
    if (run)
        free_workers(run->workers, run->plan->threads);
    free(run);
}

tp_status transfer_begin(struct transfer_run **out, struct transfer_plan *p, struct tp_err *err)
{
    struct transfer_run *run = calloc(1, sizeof *run);
    tp_status st = run ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for a transfer");

    if (run) {
        run->plan = p;
        run->next = p->begin;
        run->round_size = p->threads;
        st = make_workers(&run->workers, p, err);
    }
    st = agree(p, st, err);
    if (st) {
        run_free(run);
        return st;
    }
    *out = run;
    return TP_OK;
}

bool transfer_is_done(const struct transfer_run *run)
{
    return run->next >= run->plan->end;
}

/* At the end of a round all threads wait for the slowest. So long rounds waste less time. */
tp_status transfer_round(struct transfer_run *run, double seconds, int64_t *tiles_done,
                         struct tp_err *err)
{
    const struct transfer_plan *p = run->plan;
    int64_t left = p->end - run->next;
    int64_t n = isinf(seconds) || run->round_size > left ? left : run->round_size;
    double start = clock_seconds(), took;
    tp_status st = thread_pool_run(move_tile, run, n, p->threads, err);

    if (st)
        return st;
    run->next += n;
    *tiles_done = run->next;
    took = clock_seconds() - start;
    if (took < seconds / 2)
        run->round_size *= 2;
    else if (took > seconds * 2 && run->round_size / 2 >= p->threads)
        run->round_size /= 2;
    return TP_OK;
}

static tp_status check_source(const struct transfer_plan *p, struct tp_err *err)
{
    const struct reshard_endpoint *from = p->transfer.from;

    return agree(p, from->check ? from->check(from->ctx, err) : TP_OK, err);
}

tp_status transfer_end(struct transfer_run *run, tp_status st, struct transfer_stats *stats,
                       struct tp_err *err)
{
    const struct transfer_plan *p = run->plan;

    *stats = p->stats;
    stats->bytes_read = atomic_load(&run->bytes_read);
    stats->bytes_written = atomic_load(&run->bytes_written);
    run_free(run); /* before the check, which allocates memory too */
    st = agree(p, st, err);
    return st ? st : check_source(p, err);
}

tp_status transfer_execute(struct transfer_plan *p, struct transfer_stats *stats,
                           struct tp_err *err)
{
    struct transfer_run *run = NULL;
    int64_t done;
    tp_status st = transfer_begin(&run, p, err);

    if (st)
        return st;
    if (!transfer_is_done(run))
        st = transfer_round(run, (double)INFINITY, &done, err);
    return transfer_end(run, st, stats, err);
}

/* ---- proof ---- */

tp_status transfer_compare_digests(const struct transfer_plan *p, int *equal, int *cast_tensors,
                                   struct tp_err *err)
{
    const struct reshard_endpoint *from = p->transfer.from, *to = p->transfer.to;

    *equal = *cast_tensors = 0;
    for (int i = 0; i < p->transfer.n_tensors; i++) {
        char read_text[DIGEST_TEXT_MAX], written_text[DIGEST_TEXT_MAX];
        struct digest read, written;

        if (from->dtypes[i] != to->dtypes[i]) {
            ++*cast_tensors;
            continue;
        }
        read = from->digest(from->ctx, i);
        written = to->digest(to->ctx, i);
        if (read.d[0] != written.d[0] || read.d[1] != written.d[1])
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: tensor %s has the digest %s, but what was written to %s has %s; "
                           "nothing is kept",
                           from->name, p->transfer.tensors[i].name, digest_format(read_text, &read),
                           to->name, digest_format(written_text, &written));
        ++*equal;
    }
    return TP_OK;
}
