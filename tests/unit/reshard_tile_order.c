/*
 * tests/unit/reshard_tile_order.c - the order in which threads move the tiles of a tensor.
 *
 * covers: reshard/engine/execute reshard/engine/move_tile
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tests/unit/store.h"

enum { THREADS = 4, ROWS = 64 };

/* Between two stores: of each thread, the target to which it writes first. */
static struct watched {
    struct reshard_endpoint to;
    pthread_barrier_t all;
    atomic_int n_writes, first[THREADS];
} watched;

/* A write of struct reshard_endpoint. The first one of each thread waits for those of the others,
 * so that every thread has one. */
static tp_status watched_write(void *ctx, int extent, const struct box *run, const void *buf,
                               struct tp_err *err)
{
    const int n = atomic_fetch_add(&watched.n_writes, 1);

    if (n < THREADS) {
        atomic_store(&watched.first[n], extent);
        pthread_barrier_wait(&watched.all);
    }
    return watched.to.write(ctx, extent, run, buf, err);
}

/* Move a tensor in tiles of `tile_bytes`, as read and written. */
static void move(const struct store *from, const struct store *to, const struct reshard_tensor *t,
                 int64_t tile_bytes)
{
    struct transfer m = { .n_tensors = 1,
                          .tensors = t,
                          .from = &from->endpoint,
                          .to = &to->endpoint,
                          .memory_bytes = THREADS * 2 * tile_bytes,
                          .thread_bytes = 2 * tile_bytes,
                          .threads = THREADS };
    struct transfer_stats stats;
    struct transfer_plan *p = NULL;
    struct tp_err err = { 0 };

    cr_assert_eq(transfer_plan_make(&p, &m, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(transfer_execute(p, &stats, &err), TP_OK, "%s", err.msg);
    transfer_plan_free(p);
}

/* Move a tensor of ROWS rows of 32 columns, in tiles of two rows, to THREADS targets. Returns to
 * how many of them the first writes of the threads went. */
static int targets_of_first_writes(bool any_order, bool by_rows)
{
    const struct reshard_tensor t = { .name = "w", .ndim = 2, .shape = { ROWS, 32 } };
    const struct box whole = box_whole(t.ndim, t.shape);
    struct reshard_extent *source = calloc(1, sizeof *source),
                          *targets = calloc(THREADS, sizeof *targets);
    enum dtype dtype = DTYPE_F32;
    struct store from, to;
    int seen = 0, axis = by_rows ? 0 : 1;

    source->box = whole;
    for (int i = 0; i < THREADS; i++) {
        targets[i].box = whole;
        targets[i].box.len[axis] /= THREADS;
        targets[i].box.lo[axis] = i * targets[i].box.len[axis];
    }
    store_make(&from, source, 1, 1, &dtype);
    store_make(&to, targets, THREADS, 1, &dtype);
    store_visit(&from, &t, true);
    from.endpoint.any_order = to.endpoint.any_order = any_order;
    to.endpoint.place = NULL; /* so that runs are gathered elsewhere, and then written */
    watched.to = to.endpoint;
    to.endpoint.write = watched_write;
    atomic_store(&watched.n_writes, 0);
    pthread_barrier_init(&watched.all, NULL, THREADS);
    move(&from, &to, &t, 2 * 32 * 4);
    cr_assert_eq(store_visit(&to, &t, false), 0);
    pthread_barrier_destroy(&watched.all);
    for (int i = 0; i < THREADS; i++)
        seen |= 1 << atomic_load(&watched.first[i]);
    store_free(&from);
    store_free(&to);
    return __builtin_popcount((unsigned)seen);
}

Test(tile_order, threads_work_far_apart_and_write_to_different_targets, .timeout = 60)
{
    cr_expect_eq(targets_of_first_writes(true, true), THREADS);
}

Test(tile_order, threads_that_have_a_part_for_each_target_begin_with_different_ones, .timeout = 60)
{
    cr_expect_eq(targets_of_first_writes(true, false), THREADS);
}

Test(tile_order, an_endpoint_that_keeps_its_order_gets_neighbours, .timeout = 60)
{
    cr_expect_eq(targets_of_first_writes(false, true), 1);
}
