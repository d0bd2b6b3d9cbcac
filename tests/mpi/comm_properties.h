/*
 * tests/mpi/comm_properties.h - properties of control messages and collectives that hold with every
 * launcher.
 *
 * tests/unit/comm_shm.c checks them under our own launcher, tests/mpi/comm.c under mpirun. All
 * ranks call each function with the same seed. The functions print failures and return their
 * number.
 */
#ifndef TESTS_MPI_COMM_PROPERTIES_H
#define TESTS_MPI_COMM_PROPERTIES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/rank_env.h"
#include "tests/mpi/control_calls.h"

enum { PROP_CALLS = 60 }; /* per run */

typedef int (*prop_fn)(struct rank_device *d, uint64_t seed);

/* Open the queue, the memory and the requests of p. */
static inline tp_status prop_open(struct prop *p, struct tp_err *err)
{
    void *shared = NULL, *plain = NULL;
    tp_status st;

    TP_TRY(comm_alloc(&shared, p->device->ranks, PROP_BYTES, err));
    TP_TRY(device_alloc(p->device->device, &plain, PROP_BYTES, err));
    TP_TRY(device_queue_open(p->device->device, &p->second, DEVICE_QUEUE_COMM, err));
    for (int k = 0; k < PROP_JOBS; k++)
        TP_TRY(device_event_open(p->device->device, &p->events[k], err));
    for (int k = 0; k < 2 && comm_size(p->comm) > 1; k++)
        TP_TRY(comm_request_open(&p->requests[k], p->comm, COMM_NEXT, err));
    TP_TRY(comm_exchange_open(p->comm, err));
    p->shared = shared;
    p->plain = plain;
    p->expect = malloc(PROP_BYTES);
done:
    return st;
}

static inline void prop_close(struct prop *p)
{
    device_queue_close(p->second);
    for (int k = 0; k < PROP_JOBS; k++)
        device_event_close(p->events[k]);
    device_free(p->device->device, p->plain);
    free(p->expect);
}

static inline int prop_is_zero(const struct prop *p)
{
    int failures = 0;

    PROP_EXPECT((uintptr_t)p->shared % 64 == 0, "comm_alloc gives %p", (void *)p->shared);
    for (int64_t i = 0; i < PROP_BYTES && !failures; i++)
        PROP_EXPECT(!p->shared[i], "comm_alloc: byte %lld is not 0", (long long)i);
    return failures;
}

/* A random sequence of collectives on c. ranks: the global ranks of its members. */
static inline int prop_sequence(struct rank_device *d, struct comm *c, const int *ranks,
                                uint64_t seed, int n_calls)
{
    static int (*const calls[])(const struct prop *, struct rng *, uint64_t) = {
        prop_all_reduce, prop_all_reduce, prop_all_gather, prop_reduce_scatter, prop_ring,
        prop_line,       prop_second,     prop_all_to_all, prop_exchange,
    };
    struct rng r = { seed };
    struct prop p = { .device = d, .comm = c, .ranks = ranks };
    struct tp_err err = { 0 };
    int failures = 0;

    PROP_EXPECT(!prop_open(&p, &err), "%s", err.msg);
    if (!failures)
        failures += prop_is_zero(&p);
    for (int i = 0; i < n_calls && !failures; i++) {
        uint64_t call = rng_next(&r) >> 16;

        failures += calls[rng_int(&r, 0, sizeof calls / sizeof *calls - 1)](&p, &r, call);
    }
    if (failures) /* this rank missed a call, so the other ranks may wait for it */
        _exit(1);
    prop_close(&p);
    return failures;
}

static inline int prop_all_ranks(struct rank_device *d, uint64_t seed)
{
    int ranks[64];

    for (int q = 0; q < comm_size(d->all); q++)
        ranks[q] = q;
    return prop_sequence(d, d->all, ranks, seed, PROP_CALLS);
}

static inline int prop_control(struct rank_device *d, uint64_t seed)
{
    static int (*const calls[])(const struct control_prop *, struct rng *, uint64_t) = {
        control_prop_broadcast, control_prop_all_gather, control_prop_gather,
        control_prop_reduce,    control_prop_agree,      control_prop_barrier,
    };
    struct rng r = { seed };
    struct control_prop p = { d->control, malloc(PROP_BYTES), malloc(PROP_BYTES) };
    int failures = 0;

    for (int i = 0; i < PROP_CALLS && !failures; i++) {
        uint64_t call = rng_next(&r) >> 16;

        failures += calls[rng_int(&r, 0, sizeof calls / sizeof *calls - 1)](&p, &r, call);
    }
    if (failures)
        _exit(1);
    free(p.buf);
    free(p.expect);
    return failures;
}

/* Calls on the rows and columns of a grid. Each rank alternates between its row and its column, and
 * both kinds are in use at the same time. Then both are freed and made again in the other order. */
static inline int prop_grid(struct rank_device *d, int n_columns, uint64_t seed)
{
    int me = comm_rank(d->all), n_rows = comm_size(d->all) / n_columns;
    int row = me / n_columns, column = me % n_columns, ranks[64];
    struct tp_err err = { 0 };
    int failures = 0;

    for (int turn = 0; turn < 3; turn++) {
        struct comm *in_row = NULL, *in_column = NULL, *none = d->all;
        int sign = turn % 2 ? -1 : 1; /* sign of the keys */

        PROP_EXPECT(!comm_split(&in_row, d->all, row, sign * me, &err), "%s", err.msg);
        PROP_EXPECT(!comm_split(&in_column, d->all, 7 + column, sign * me, &err), "%s", err.msg);
        PROP_EXPECT(!comm_split(&none, d->all, me ? -1 : 3, 0, &err), "%s", err.msg);
        PROP_EXPECT((none != NULL) == (me == 0), "rank %d: color -1", me);
        if (!in_row || !in_column)
            return failures;
        PROP_EXPECT(comm_size(in_row) == n_columns && comm_size(in_column) == n_rows,
                    "rank %d: row of %d, column of %d", me, comm_size(in_row),
                    comm_size(in_column));
        for (int q = 0; q < n_columns; q++)
            ranks[q] = row * n_columns + (turn % 2 ? n_columns - 1 - q : q);
        failures += prop_sequence(d, in_row, ranks, seed + (uint64_t)(turn * 64 + row), 12);
        for (int q = 0; q < n_rows; q++)
            ranks[q] = (turn % 2 ? n_rows - 1 - q : q) * n_columns + column;
        failures +=
            prop_sequence(d, in_column, ranks, seed + (uint64_t)(turn * 64 + 32 + column), 12);
        comm_free(none);
        comm_free(in_row);
        comm_free(in_column);
    }
    return failures;
}

/* The calls that prop_counts counts. x is device memory. */
static inline void prop_counted_calls(struct rank_device *d, struct comm *c, int64_t *x,
                                      struct comm_request *sent)
{
    int me = comm_rank(c);

    comm_all_reduce(c, d->queue, x, 100, DTYPE_F32, COMM_SUM);
    comm_all_reduce(c, d->queue, x, 7, DTYPE_I64, COMM_MAX);
    comm_all_gather(c, d->queue, x, x + me, 1, DTYPE_F64);
    comm_reduce_scatter(c, d->queue, x + me, x, 3, DTYPE_BF16);
    if (sent && me == 0) {
        comm_send(c, d->queue, x, 77, DTYPE_U8, 1, sent);
        comm_wait(c, d->queue, sent);
    } else if (sent && me == 1) {
        comm_recv(c, d->queue, x, 77, DTYPE_U8, 0);
    }
    if (sent)
        comm_exchange(c, d->queue, x + 8, x, 10, DTYPE_F32);
}

/* Calls and bytes are counted exactly. */
static inline int prop_counts(struct rank_device *d, uint64_t seed)
{
    struct comm_counts want = {
        .calls = { [COMM_ALL_REDUCE] = 2, [COMM_ALL_GATHER] = 1, [COMM_REDUCE_SCATTER] = 1 },
        .bytes = { [COMM_ALL_REDUCE] = 456, [COMM_ALL_GATHER] = 8, [COMM_REDUCE_SCATTER] = 6 }
    };
    int me = comm_rank(d->all), size = comm_size(d->all);
    struct comm *c = NULL;
    struct comm_request *sent = NULL;
    struct tp_err err = { 0 };
    void *x = NULL;
    int failures = 0;

    (void)seed;
    PROP_EXPECT(!comm_split(&c, d->all, 0, 0, &err), "%s", err.msg);
    PROP_EXPECT(!comm_alloc(&x, d->ranks, 4096, &err), "%s", err.msg);
    if (size > 1)
        PROP_EXPECT(!comm_request_open(&sent, c, COMM_NEXT, &err), "%s", err.msg);
    prop_counted_calls(d, c, x, sent);
    PROP_EXPECT(!rank_device_sync(d, d->queue, &err), "%s", err.msg);
    for (int kind = COMM_SEND; size > 1 && kind <= COMM_RECV; kind++) {
        bool also = kind == COMM_SEND ? me == 0 : me == 1;

        want.calls[kind] = also ? 2 : 1; /* the exchange is counted as both */
        want.bytes[kind] = also ? 117 : 40;
    }
    for (int k = 0; k < COMM_KINDS; k++)
        PROP_EXPECT(comm_counts(c)->calls[k] == want.calls[k] &&
                        comm_counts(c)->bytes[k] == want.bytes[k],
                    "rank %d, call %d: counted %lld and %lld bytes, not %lld and %lld", me, k,
                    (long long)comm_counts(c)->calls[k], (long long)comm_counts(c)->bytes[k],
                    (long long)want.calls[k], (long long)want.bytes[k]);
    return failures;
}

/* Check all properties in these ranks, and `more` (or NULL). */
static inline int prop_run(struct rank_device *d, const char *test, prop_fn more)
{
    struct rng r = { 0 };
    struct tp_err err = { 0 };
    int failures = 0, size = comm_size(d->all);

    if (comm_rank(d->all) == 0)
        r = rng_start(test);
    PROP_EXPECT(!control_broadcast(d->control, &r, sizeof r, 0, &err), "%s", err.msg);
    PROP_EXPECT(comm_local_size(d->ranks) == size, "local size %d", comm_local_size(d->ranks));
    failures += prop_control(d, rng_next(&r));
    for (int i = 0; i < 3; i++)
        failures += prop_all_ranks(d, rng_next(&r));
    for (int columns = 1; columns <= size; columns++)
        if (size % columns == 0)
            failures += prop_grid(d, columns, rng_next(&r));
    failures += prop_counts(d, 0);
    return more && size > 1 ? failures + more(d, 0) : failures;
}

/* prop_run under mpirun. Returns the program's exit code. host_ranks as in comm/env.h. */
static inline int prop_main(const char *test, int host_ranks, prop_fn more)
{
    struct comm_env env;
    struct comm_world *ranks = NULL;
    struct rank_device d;
    struct tp_err err = { 0 };
    int failures;

    rank_env_read(&env);
    env.host_ranks = host_ranks;
    if (!env.is_mpi) {
        fprintf(stderr, "%s: not started by mpirun\n", test);
        return 2;
    }
    if (comm_open(&ranks, &env, 1 << 28, &err) || rank_device_open(&d, ranks, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 3;
    }
    failures = prop_run(&d, test, more);
    rank_device_close(&d);
    comm_close(ranks, failures ? TP_E_CORRUPT : TP_OK);
    return failures > 0;
}

#endif
