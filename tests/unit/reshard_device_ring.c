/*
 * tests/unit/reshard_device_ring.c - the ring on the fake CUDA device, with targets that flush;
 * and the choice between the device and the host.
 *
 * needs: libtp-cuda.so
 * covers: reshard/engine/device_ring reshard/engine/device_start
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <time.h>

#include "reshard/engine/transfer_run.h"
#include "tests/unit/cuda_support.h"
#include "tests/unit/store.h"

enum { TENSORS = 60, ROWS = 24, COLUMNS = 40 };

/* What a target that flushes was asked to do. */
struct flushed {
    struct store store;
    struct reshard_endpoint endpoint;
    atomic_llong unflushed, most;
    atomic_int writers;
    int flushes;
};

static tp_status write_counted(void *ctx, int extent, const struct box *run, const void *buf,
                               struct tp_err *err)
{
    struct flushed *f = ctx;
    const struct store *s = &f->store;
    const int64_t n = box_elements(run) * dtype_bytes(s->dtypes[s->extents[extent].tensor]);
    tp_status st;

    atomic_fetch_add(&f->writers, 1);
    atomic_fetch_add(&f->unflushed, n);
    st = s->endpoint.write(s->endpoint.ctx, extent, run, buf, err);
    atomic_fetch_sub(&f->writers, 1);
    return st;
}

static tp_status flush(void *ctx, struct tp_err *err)
{
    struct flushed *f = ctx;
    const long long n = atomic_exchange(&f->unflushed, 0);

    if (atomic_load(&f->writers) > 0)
        return tp_fail(err, TP_E_INTERNAL, "a thread writes while the target is flushed");
    if (n > atomic_load(&f->most))
        atomic_store(&f->most, n);
    f->flushes++;
    return TP_OK;
}

/* Each tensor cut into `parts` along an axis. */
static void store_cut(struct store *s, const struct reshard_tensor *tensors, int axis, int parts)
{
    struct reshard_extent *extents = calloc(TENSORS * (size_t)parts, sizeof *extents);
    enum dtype dtypes[TENSORS];

    for (int t = 0; t < TENSORS; t++) {
        const int64_t length = tensors[t].shape[axis];

        dtypes[t] = DTYPE_F32;
        for (int k = 0; k < parts; k++) {
            struct reshard_extent *e = &extents[t * parts + k];

            e->tensor = t;
            e->box = box_whole(2, tensors[t].shape);
            e->box.lo[axis] = length * k / parts;
            e->box.len[axis] = length * (k + 1) / parts - e->box.lo[axis];
        }
    }
    store_make(s, extents, TENSORS * parts, TENSORS, dtypes);
}

static void move_on_gpu(struct flushed *f, const struct store *from,
                        const struct reshard_tensor *tensors, struct rng *r)
{
    struct device *gpu = open_cuda(rng_next(r));
    const struct transfer_device on = { .device = gpu,
                                        .ops = cuda->kernels,
                                        .memory_bytes = 1 << 20 };
    const struct transfer m = { .n_tensors = TENSORS,
                                .tensors = tensors,
                                .from = &from->endpoint,
                                .to = &f->endpoint,
                                .memory_bytes = 8 << 20,
                                .threads = (int)rng_int(r, 1, 3),
                                .device = &on };
    struct tp_err err = { 0 };
    struct transfer_run *run;
    struct transfer_stats stats;
    struct transfer_plan *p;
    int64_t done;
    tp_status st = TP_OK;

    cr_assert_eq(transfer_plan_make(&p, &m, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(transfer_begin(&run, p, &err), TP_OK, "%s", err.msg);
    while (!st && !transfer_is_done(run))
        st = transfer_round(run, 0.05, &done, &err);
    st = transfer_end(run, st, &stats, &err);
    cr_assert_eq(st, TP_OK, "%s", err.msg);
    transfer_plan_free(p);
    device_close(gpu);
}

/* Some tiles do not fit into what is flushed at a time, so threads copy them. */
Test(device_ring, a_target_is_flushed_before_it_has_more_than_its_limit_and_a_tile)
{
    struct rng r = rng_start("device_ring/flush");

    for (int round = 0; round < 4; round++) {
        struct reshard_tensor tensors[TENSORS];
        struct flushed f = { .flushes = 0 };
        struct store from;
        int64_t all = 0, tile = 0;

        for (int t = 0; t < TENSORS; t++) {
            int64_t n;

            tensors[t] = (struct reshard_tensor){ "w", 2, { rng_int(&r, 4, ROWS), 0 } };
            tensors[t].shape[1] = rng_int(&r, 4, COLUMNS);
            n = tensors[t].shape[0] * tensors[t].shape[1] * dtype_bytes(DTYPE_F32);
            all += n;
            tile = n > tile ? n : tile;
        }
        store_cut(&from, tensors, 0, (int)rng_int(&r, 1, 4));
        store_visit(&from, tensors, true);
        store_cut(&f.store, tensors, 1, (int)rng_int(&r, 1, 4));
        f.endpoint = f.store.endpoint;
        f.endpoint.ctx = &f;
        f.endpoint.place = NULL;
        f.endpoint.write = write_counted;
        f.endpoint.flush = flush;
        f.endpoint.flush_bytes = rng_int(&r, 1, 12) << 10;
        move_on_gpu(&f, &from, tensors, &r);
        cr_assert_eq(store_visit(&f.store, tensors, false), 0);
        cr_assert_eq(atomic_load(&f.unflushed), 0, "what was written last was not flushed");
        cr_assert_leq(atomic_load(&f.most), f.endpoint.flush_bytes + tile);
        cr_assert_geq(f.flushes, all / (f.endpoint.flush_bytes + tile));
        store_free(&from);
        store_free(&f.store);
    }
}

/* ---- the faster one ---- */

/* A target that is slow while the host, or the device, does the work. The host is measured first,
 * so a slow device needs twice the time that the host was measured to need: a busy machine makes it
 * slower still. The writes of a slow host take 50 times as long as those of a fast device. */
struct paced {
    struct store store;
    struct reshard_endpoint endpoint;
    const struct transfer_run *run;
    bool device_is_slow;
};

static tp_status write_paced(void *ctx, int extent, const struct box *box, const void *buf,
                             struct tp_err *err)
{
    const struct paced *p = ctx;
    const struct transfer_choice *c = &p->run->choice;
    const bool on_device = c->is_made ? !c->host_only : c->host_rate > 0;
    const double bytes = (double)(box_elements(box) * dtype_bytes(DTYPE_F32));
    double s = on_device == p->device_is_slow ? 0.2 : 0.004;

    if (on_device && p->device_is_slow)
        s = 2 * bytes / c->host_rate;
    nanosleep(&(struct timespec){ (time_t)s, (long)(fmod(s, 1) * 1e9) }, NULL);
    return p->store.endpoint.write(p->store.endpoint.ctx, extent, box, buf, err);
}

static void check_choice(struct rng *r, bool device_is_slow)
{
    struct device *gpu = open_cuda(rng_next(r));
    const struct transfer_device on = {
        .device = gpu, .ops = cuda->kernels, .memory_bytes = 1 << 20, .if_faster = true
    };
    struct reshard_tensor tensors[TENSORS];
    struct paced target = { .device_is_slow = device_is_slow };
    struct store from;
    struct transfer m = { .n_tensors = TENSORS, .tensors = tensors, .threads = 1, .device = &on };
    struct transfer_run *run;
    struct transfer_stats stats;
    struct transfer_plan *p;
    struct tp_err err = { 0 };
    int64_t done, on_device_then = -1;
    tp_status st = TP_OK;

    for (int t = 0; t < TENSORS; t++)
        tensors[t] = (struct reshard_tensor){ "w", 2, { 4, 8 } };
    store_cut(&from, tensors, 0, 2);
    store_visit(&from, tensors, true);
    store_cut(&target.store, tensors, 1, 4);
    target.endpoint = target.store.endpoint;
    target.endpoint.ctx = &target;
    target.endpoint.place = NULL;
    target.endpoint.write = write_paced;
    m.from = &from.endpoint;
    m.to = &target.endpoint;
    m.memory_bytes = 8 << 20;
    cr_assert_eq(transfer_plan_make(&p, &m, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(transfer_begin(&run, p, &err), TP_OK, "%s", err.msg);
    target.run = run;
    while (!st && !transfer_is_done(run)) {
        st = transfer_round(run, 0.5, &done, &err);
        if (run->choice.is_made && on_device_then < 0)
            on_device_then = run->choice.device_bytes;
    }
    st = transfer_end(run, st, &stats, &err);
    cr_assert_eq(st, TP_OK, "%s", err.msg);
    cr_assert_eq(store_visit(&target.store, tensors, false), 0);
    cr_assert(stats.host_rate > 0 && stats.device_rate > 0 && on_device_then > 0);
    cr_assert_eq(stats.host_rate > stats.device_rate, device_is_slow);
    cr_assert_eq(stats.device_bytes > on_device_then, !device_is_slow,
                 "after the choice, the faster one continues");
    transfer_plan_free(p);
    store_free(&from);
    store_free(&target.store);
    device_close(gpu);
}

Test(device_ring, both_are_measured_and_the_faster_one_continues)
{
    struct rng r = rng_start("device_ring/choice");

    check_choice(&r, true);
    check_choice(&r, false);
}

/* ---- a device that is being opened ---- */

/* Opens when the host has copied, or never. */
struct late {
    struct transfer_device on;
    struct device *gpu;     /* NULL: it cannot be opened */
    struct flushed *target; /* written to */
};

static tp_status wait_late(void *ctx, struct tp_err *err)
{
    struct late *l = ctx;
    const struct timespec pause = { 0, 1000000 };

    if (!l->gpu)
        return tp_fail(err, TP_E_NOTFOUND, "there is no GPU");
    while (atomic_load(&l->target->unflushed) == 0)
        nanosleep(&pause, NULL);
    l->on.device = l->gpu;
    l->on.ops = cuda->kernels;
    return TP_OK;
}

/* Copy from rows to columns. */
static tp_status copy_late(struct transfer_stats *stats, struct late *l, struct flushed *f,
                           struct rng *r, struct tp_err *err)
{
    struct reshard_tensor tensors[TENSORS];
    struct transfer m = { .n_tensors = TENSORS, .tensors = tensors, .threads = 1 };
    struct transfer_plan *p;
    struct transfer_run *run;
    struct store from;
    int64_t done;
    tp_status st = TP_OK;

    for (int t = 0; t < TENSORS; t++)
        tensors[t] = (struct reshard_tensor){ "w", 2, { 160, rng_int(r, 300, 320) } };
    store_cut(&from, tensors, 0, 2);
    store_visit(&from, tensors, true);
    store_cut(&f->store, tensors, 1, 4);
    f->endpoint = f->store.endpoint;
    f->endpoint.ctx = f;
    f->endpoint.place = NULL;
    f->endpoint.write = write_counted;
    m.from = &from.endpoint;
    m.to = &f->endpoint;
    m.memory_bytes = 8 << 20;
    m.device = &l->on;
    cr_assert_eq(transfer_plan_make(&p, &m, err), TP_OK, "%s", err->msg);
    cr_assert_eq(transfer_begin(&run, p, err), TP_OK, "%s", err->msg);
    while (!st && !transfer_is_done(run)) {
        st = transfer_round(run, 0.01, &done, err);
        run->choice.host_rate = 1; /* as if it had been measured */
    }
    st = transfer_end(run, st, stats, err);
    if (!st)
        cr_assert_eq(store_visit(&f->store, tensors, false), 0);
    transfer_plan_free(p);
    store_free(&from);
    store_free(&f->store);
    return st;
}

static struct late late(struct device *gpu, struct flushed *f, bool if_faster)
{
    return (
        struct late){ .on = { .memory_bytes = 1 << 20, .if_faster = if_faster, .wait = wait_late },
                      .gpu = gpu,
                      .target = f };
}

Test(device_ring, the_host_copies_until_the_device_is_open)
{
    struct rng r = rng_start("device_ring/late");
    struct device *gpu = open_cuda(rng_next(&r));
    struct flushed f = { .flushes = 0 };
    struct late l = late(gpu, &f, false);
    struct transfer_stats stats;
    struct tp_err err = { 0 };

    l.on.ctx = &l;
    cr_assert_eq(copy_late(&stats, &l, &f, &r, &err), TP_OK, "%s", err.msg);
    cr_assert(stats.device_bytes > 0 && stats.device_bytes < stats.bytes_written,
              "%lld of %lld bytes by the device", (long long)stats.device_bytes,
              (long long)stats.bytes_written);
    device_close(gpu);
}

Test(device_ring, a_device_that_does_not_open_fails_the_copy_unless_it_is_a_choice)
{
    struct rng r = rng_start("device_ring/never");
    struct transfer_stats stats;
    struct tp_err err = { 0 };

    for (int if_faster = 0; if_faster < 2; if_faster++) {
        struct flushed f = { .flushes = 0 };
        struct late l = late(NULL, &f, if_faster);

        l.on.ctx = &l;
        cr_assert_eq(copy_late(&stats, &l, &f, &r, &err), if_faster ? TP_OK : TP_E_NOTFOUND);
        cr_assert_eq(stats.device_bytes, 0);
    }
    cr_assert_str_eq(err.msg, "there is no GPU");
}
