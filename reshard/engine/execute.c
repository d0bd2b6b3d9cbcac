/* reshard/engine/execute.c - executes a plan in rounds of tiles, and proves the result; see
 * reshard/engine/transfer.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/thread_pool.h"
#include "reshard/engine/device_ring.h"
#include "reshard/engine/device_start.h"
#include "reshard/engine/reduce_sums.h"
#include "reshard/engine/transfer_run.h"

/* ---- all tiles ---- */

static void free_workers(struct transfer_worker *workers, int n)
{
    for (int i = 0; workers && i < n; i++) {
        free(workers[i].buffer);
        transfer_tile_free(&workers[i].tile);
        free(workers[i].targets);
        free(workers[i].gathered);
    }
    free(workers);
}

static tp_status make_workers(struct transfer_worker **out, const struct transfer_plan *p,
                              struct tp_err *err)
{
    struct transfer_worker *workers = calloc((size_t)p->threads, sizeof *workers);
    bool ok = workers != NULL;

    for (int i = 0; ok && i < p->threads; i++) {
        struct transfer_worker *w = &workers[i];

        w->buffer = aligned_alloc(TRANSFER_ALIGN,
                                  (size_t)transfer_aligned(p->thread_bytes) + 2 * TRANSFER_ALIGN);
        w->targets = calloc((size_t)p->max_to, sizeof *w->targets);
        w->gathered = calloc((size_t)p->max_to, sizeof *w->gathered);
        ok = !transfer_tile_make(&w->tile, p, err) && w->buffer && w->targets && w->gathered;
    }
    if (!ok) {
        free_workers(workers, p->threads);
        return tp_fail(err, TP_E_NOMEM, "no memory for %d buffers of %lld bytes", p->threads,
                       (long long)p->thread_bytes);
    }
    *out = workers;
    return TP_OK;
}

/*
 * The tile that is moved as number `tile`. Neighbouring tiles are mostly in one target file, to
 * which one thread can write at a time. So the tiles of a tensor, as far as they are moved now, are
 * divided into as many spans as there are threads, and interleaved: one tile of each span in turn.
 */
static int64_t interleave(const struct transfer_run *r, int64_t tile)
{
    const struct transfer_plan *p = r->plan;
    const int tensor = transfer_tile_tensor(p, tile);
    int64_t begin = p->first_tile[tensor], end = p->first_tile[tensor + 1];
    int64_t span, longer, k; /* tiles of a span; spans that have one more; the span of this tile */

    if (!p->transfer.from->any_order || !p->transfer.to->any_order)
        return tile;
    begin = begin > r->next ? begin : r->next;
    end = end < r->end ? end : r->end;
    span = (end - begin) / p->threads;
    longer = (end - begin) % p->threads;
    k = (tile - begin) % p->threads;
    return begin + k * span + (k < longer ? k : longer) + (tile - begin) / p->threads;
}

/* A thread_pool_fn: item counts from the first tile of the round. */
static tp_status move_tile(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct transfer_run *r = ctx;

    return transfer_move_tile(r, interleave(r, r->next + item), worker, err);
}

/* For look_ahead.c. */
static tp_status make_ahead(struct transfer_ahead *a, const struct transfer_plan *p,
                            struct tp_err *err)
{
    pthread_mutex_init(&a->lock, NULL);
    a->next = p->announced > p->begin ? p->announced : p->begin;
    a->bytes = p->announced > p->begin ? p->announced_bytes : 0;
    return p->transfer.from->will_read ? transfer_tile_make(&a->tile, p, err) : TP_OK;
}

void transfer_cancel(struct transfer_run *run)
{
    if (run) {
        transfer_tile_free(&run->ahead.tile);
        pthread_mutex_destroy(&run->ahead.lock);
        device_start_free(run->start);
        device_ring_close(run->ring);
        free_workers(run->workers, run->plan->threads);
    }
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
        st = make_ahead(&run->ahead, p, err);
        if (!st)
            st = make_workers(&run->workers, p, err);
        if (!st && p->transfer.device && !(run->start = device_start_new(p)))
            st = tp_fail(err, TP_E_NOMEM, "no memory for a transfer");
    }
    st = control_agree(p->transfer.control, st, err);
    if (st) {
        transfer_cancel(run);
        return st;
    }
    *out = run;
    return TP_OK;
}

bool transfer_is_done(const struct transfer_run *run)
{
    return run->next >= run->plan->end;
}

/* The shortest round, in seconds, that shows a rate. */
#define MEASURED_S 0.2

/* Whether the host copies because the device is still starting. More is left than a start is worth
 * waiting for, and the device gets the last tiles in any case. */
static bool is_early(struct transfer_run *run, double seconds)
{
    const struct transfer_plan *p = run->plan;

    return !isinf(seconds) && device_start_runs(run->start) && p->end - run->next > 1 &&
           p->stats.bytes_written - atomic_load(&run->bytes_written) > 2 * p->ring_bytes;
}

/* Whether the device does the next round. While the choice is open, the host does rounds until one
 * was long enough to measure and the device has started, and then the device. */
static bool is_for_device(struct transfer_run *run, double seconds)
{
    const struct transfer_device *on = run->plan->transfer.device;
    const struct transfer_choice *c = &run->choice;

    if (!on || run->plan->narrows)
        return false;
    if (on->wait && (!on->if_faster || c->host_rate > 0))
        device_start_begin(run->start);
    if (!on->if_faster)
        return !is_early(run, seconds);
    if (c->is_made)
        return !c->host_only;
    return c->host_rate > 0 && !device_start_runs(run->start);
}

static void measure(struct transfer_run *run, bool on_device, int64_t bytes, double seconds)
{
    struct transfer_choice *c = &run->choice;

    if (on_device)
        c->device_bytes += bytes;
    if (!run->plan->transfer.device || c->is_made || seconds < MEASURED_S)
        return;
    *(on_device ? &c->device_rate : &c->host_rate) = (double)bytes / seconds;
    c->is_made = c->host_rate > 0 && c->device_rate > 0;
    c->host_only = c->host_rate >= c->device_rate;
}

/* Before the first round on the device. *is_open is false if it could not be opened and need not
 * be. */
static tp_status take_ring(struct transfer_run *run, bool *is_open, struct tp_err *err)
{
    tp_status st = device_start_end(run->start, &run->ring, is_open, err);

    if (*is_open || !run->plan->transfer.device->if_faster)
        return st;
    run->choice.is_made = run->choice.host_only = true;
    return TP_OK;
}

static tp_status move_on_device(struct transfer_run *run, int64_t n, struct tp_err *err)
{
    tp_status st = device_ring_move(run->ring, run, run->next, n, err);

    if (!st)
        run->next += n;
    return st;
}

/* How much longer a round may become than the one before it. The first rounds are short, because
 * how fast the storage is, is not known yet. */
enum { ROUND_GROWTH = 8 };

/* The most bytes that a tile writes, whatever its tensor. */
static int64_t tile_bytes_max(const struct transfer_plan *p)
{
    int64_t most = 1;

    for (int i = 0; i < p->transfer.n_tensors; i++) {
        int64_t n = transfer_tile_elements(p, i) * dtype_bytes(p->transfer.to->dtypes[i]);

        most = n > most ? n : most;
    }
    return most;
}

/* Move the next n tiles. A target that flushes gets them in portions, in the order of the tiles. */
static tp_status move_tiles(struct transfer_run *run, int64_t n, struct tp_err *err)
{
    const struct transfer_plan *p = run->plan;
    const struct reshard_endpoint *to = p->transfer.to;
    int64_t portion = to->flush ? to->flush_bytes / tile_bytes_max(p) : n;
    tp_status st = TP_OK;

    if (portion < 1)
        portion = 1;
    while (n > 0 && !st) {
        int64_t k = n < portion ? n : portion;

        run->end = run->next + k;
        st = thread_pool_run(move_tile, run, k, p->threads, err);
        if (!st && to->flush)
            st = to->flush(to->ctx, err);
        if (!st)
            run->next += k;
        n -= k;
    }
    return st;
}

/* The tiles of the next round, so that it takes about `seconds`; the last one took `took`. */
static int64_t next_round_size(const struct transfer_run *run, double seconds, double took)
{
    const int64_t n = run->round_size;

    if (took < seconds / (2 * ROUND_GROWTH))
        return n * ROUND_GROWTH;
    if (took < seconds / 2)
        return n * 2;
    return took > seconds * 2 && n / 2 >= run->plan->threads ? n / 2 : n;
}

/* At the end of a round all threads wait for the slowest. So long rounds waste less time. */
tp_status transfer_round(struct transfer_run *run, double seconds, int64_t *tiles_done,
                         struct tp_err *err)
{
    const struct transfer_plan *p = run->plan;
    int64_t left = p->end - run->next;
    int64_t n = isinf(seconds) || run->round_size > left ? left : run->round_size;
    int64_t written = atomic_load(&run->bytes_written);
    bool on_device = is_for_device(run, seconds);
    double start = clock_seconds(), took;
    tp_status st = on_device && !run->ring ? take_ring(run, &on_device, err) : TP_OK;

    if (!on_device && run->start && device_start_has_begun(run->start) &&
        !p->transfer.device->if_faster && n > left / 2)
        n = left / 2; /* see is_early */
    if (!st)
        st = on_device ? move_on_device(run, n, err) : move_tiles(run, n, err);
    if (st)
        return st;
    *tiles_done = run->next;
    took = clock_seconds() - start;
    measure(run, on_device, atomic_load(&run->bytes_written) - written, took);
    run->round_size = next_round_size(run, seconds, took);
    return TP_OK;
}

static tp_status check_source(const struct transfer_plan *p, struct tp_err *err)
{
    const struct reshard_endpoint *from = p->transfer.from;

    return control_agree(p->transfer.control, from->check ? from->check(from->ctx, err) : TP_OK,
                         err);
}

/* Several processes: rank 0 gets the sums of all, and a source may need them for its check. */
static tp_status combine(struct transfer_plan *p, struct tp_err *err)
{
    const struct reshard_endpoint *ends[] = { p->transfer.from, p->transfer.to };
    struct comm_control *c = p->transfer.control;
    tp_status st = TP_OK;

    if (!c)
        return TP_OK;
    for (int i = 0; i < 2 && !st; i++)
        if (ends[i]->combine)
            st = ends[i]->combine(ends[i]->ctx, c, err);
    if (!st && p->cast_digests)
        st = reduce_digests(c, p->cast_digests, 2 * (int64_t)p->transfer.n_tensors, err);
    return st;
}

/* A device that is asked for has to work, also where nothing was left for it. */
static tp_status check_device(const struct transfer_plan *p, struct tp_err *err)
{
    const struct transfer_device *on = p->transfer.device;

    return on && on->wait && !on->if_faster ? on->wait(on->ctx, err) : TP_OK;
}

tp_status transfer_end(struct transfer_run *run, tp_status st, struct transfer_stats *stats,
                       struct tp_err *err)
{
    struct transfer_plan *p = run->plan;

    if (!st)
        st = check_device(p, err);
    *stats = p->stats;
    stats->bytes_read = atomic_load(&run->bytes_read);
    stats->bytes_written = atomic_load(&run->bytes_written);
    stats->device_bytes = run->choice.device_bytes;
    stats->host_rate = run->choice.host_rate;
    stats->device_rate = run->choice.device_rate;
    transfer_cancel(run); /* before the check, which allocates memory too */
    TP_TRY(control_agree(p->transfer.control, st, err));
    TP_TRY(combine(p, err));
    st = check_source(p, err);
done:
    return st;
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
        bool is_cast = from->dtypes[i] != to->dtypes[i];
        char read_text[DIGEST_TEXT_MAX], written_text[DIGEST_TEXT_MAX];
        struct digest read, written = to->digest(to->ctx, i);

        if (is_cast)
            read = (struct digest){ { p->cast_digests[2 * i], p->cast_digests[2 * i + 1] } };
        else
            read = from->digest(from->ctx, i);
        if (read.d[0] != written.d[0] || read.d[1] != written.d[1])
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: tensor %s%s%s has the digest %s, but what was written to %s has "
                           "%s; nothing is kept",
                           from->name, p->transfer.tensors[i].name, is_cast ? ", cast to " : "",
                           is_cast ? dtype_name(to->dtypes[i]) : "",
                           digest_format(read_text, &read), to->name,
                           digest_format(written_text, &written));
        ++*(is_cast ? cast_tensors : equal);
    }
    return TP_OK;
}
