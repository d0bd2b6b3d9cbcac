/*
 * tests/mpi/comm_properties.h - what must hold for communicators, however the ranks were started.
 *
 * tests/unit/comm_shm.c runs these under our own launcher, tests/mpi/comm.c under mpirun. Every
 * function is called by all ranks of `world` with the same seed. They return the number of
 * failures, which are printed.
 */
#ifndef TESTS_MPI_COMM_PROPERTIES_H
#define TESTS_MPI_COMM_PROPERTIES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/mpi/comm_calls.h"

enum { PROP_CALLS = 60 }; /* of a run */

/* A random sequence of calls on c; `ranks` are its members' numbers for prop_value. */
static inline int prop_sequence(struct comm *c, const int *ranks, uint64_t seed, int n_calls)
{
    static int (*const calls[])(const struct prop *, struct rng *, uint64_t) = {
        prop_all_reduce, prop_all_reduce, prop_all_gather, prop_reduce_scatter,
        prop_broadcast,  prop_gather,     prop_ring,       prop_line,
        prop_post,       prop_agree,      prop_barrier,    prop_background,
    };
    struct rng r = { seed };
    struct prop p = { .comm = c, .ranks = ranks };
    struct tp_err err = { 0 };
    void *shared = NULL;
    int failures = 0;

    PROP_EXPECT(!comm_alloc(&shared, c, PROP_BYTES, &err), "%s", err.msg);
    PROP_EXPECT((uintptr_t)shared % 64 == 0, "comm_alloc gives %p", shared);
    if (!shared)
        return failures;
    p.shared = shared;
    for (int64_t i = 0; i < PROP_BYTES; i++)
        if (p.shared[i]) {
            PROP_EXPECT(false, "comm_alloc: byte %lld is not 0", (long long)i);
            break;
        }
    p.plain = malloc(PROP_BYTES);
    p.expect = malloc(PROP_BYTES);
    for (int i = 0; p.plain && p.expect && i < n_calls && !failures; i++) {
        uint64_t call = rng_next(&r) >> 16;

        failures += calls[rng_int(&r, 0, sizeof calls / sizeof *calls - 1)](&p, &r, call);
    }
    free(p.plain);
    free(p.expect);
    if (failures) /* this rank is out of step: the others would wait for it */
        _exit(1);
    return failures;
}

static inline int prop_world(struct comm *world, uint64_t seed)
{
    int ranks[64];

    for (int q = 0; q < comm_size(world); q++)
        ranks[q] = q;
    return prop_sequence(world, ranks, seed, PROP_CALLS);
}

/* Rows and columns of a grid with n_columns, in turn on each rank and at once on different ranks;
 * then both are freed and made again, the other way round. */
static inline int prop_grid(struct comm *world, int n_columns, uint64_t seed)
{
    int me = comm_rank(world), n_rows = comm_size(world) / n_columns;
    int row = me / n_columns, column = me % n_columns, ranks[64];
    struct tp_err err = { 0 };
    int failures = 0;

    for (int turn = 0; turn < 3; turn++) {
        struct comm *in_row = NULL, *in_column = NULL, *none = world;
        int sign = turn % 2 ? -1 : 1; /* keys: the order is turned round */

        PROP_EXPECT(!comm_split(&in_row, world, row, sign * me, &err), "%s", err.msg);
        PROP_EXPECT(!comm_split(&in_column, world, 7 + column, sign * me, &err), "%s", err.msg);
        PROP_EXPECT(!comm_split(&none, world, me ? -1 : 3, 0, &err), "%s", err.msg);
        PROP_EXPECT((none != NULL) == (me == 0), "rank %d: color -1", me);
        if (!in_row || !in_column)
            return failures;
        PROP_EXPECT(comm_size(in_row) == n_columns && comm_size(in_column) == n_rows,
                    "rank %d: row of %d, column of %d", me, comm_size(in_row),
                    comm_size(in_column));
        for (int q = 0; q < n_columns; q++)
            ranks[q] = row * n_columns + (turn % 2 ? n_columns - 1 - q : q);
        failures += prop_sequence(in_row, ranks, seed + (uint64_t)(turn * 64 + row), 12);
        for (int q = 0; q < n_rows; q++)
            ranks[q] = (turn % 2 ? n_rows - 1 - q : q) * n_columns + column;
        failures += prop_sequence(in_column, ranks, seed + (uint64_t)(turn * 64 + 32 + column), 12);
        comm_free(none);
        comm_free(in_row);
        comm_free(in_column);
    }
    return failures;
}

/* Calls and bytes, exactly. */
static inline int prop_counts(struct comm *world)
{
    struct comm_counts want = { 0 };
    int64_t x[4096] = { 0 }, *sizes = calloc((size_t)comm_size(world), sizeof *sizes);
    int me = comm_rank(world), size = comm_size(world);
    struct comm *c = NULL;
    struct comm_work job;
    struct tp_err err = { 0 };
    void *all = NULL, *shared = NULL;
    int failures = 0;

    PROP_EXPECT(!comm_split(&c, world, 0, 0, &err), "%s", err.msg);
    PROP_EXPECT(!memcmp(comm_counts(c), &want, sizeof want), "a new communicator has counted");
    comm_all_reduce(c, x, 100, COMM_F32, COMM_SUM, &err);
    comm_all_reduce(c, x, 7, COMM_I64, COMM_MAX, &err);
    comm_all_gather(c, x, x + me, 1, COMM_F64, &err);
    comm_reduce_scatter(c, x + me, x, 1, COMM_I64, &err);
    comm_broadcast(c, x, 33, size - 1, &err);
    comm_gather(c, x, 10 + me, &all, sizes, &err);
    comm_barrier(c, &err);
    comm_agree(c, TP_OK, &err);
    want.calls[COMM_ALL_REDUCE] = 2, want.bytes[COMM_ALL_REDUCE] = 456;
    want.calls[COMM_ALL_GATHER] = 2, want.bytes[COMM_ALL_GATHER] = 16; /* one is comm_agree's */
    want.calls[COMM_REDUCE_SCATTER] = 1, want.bytes[COMM_REDUCE_SCATTER] = 8;
    want.calls[COMM_BROADCAST] = 1, want.bytes[COMM_BROADCAST] = 33;
    want.calls[COMM_GATHER] = 1, want.bytes[COMM_GATHER] = 10 + me;
    want.calls[COMM_BARRIER] = 1;
    PROP_EXPECT(!comm_alloc(&shared, world, 4096, &err), "%s", err.msg);
    comm_start_all_reduce(c, shared, 5, COMM_F64, COMM_SUM, &job, &err);
    comm_finish(c, &job, &err);
    want.calls[COMM_ALL_REDUCE]++, want.bytes[COMM_ALL_REDUCE] += 40;
    if (size > 1 && me < 2) {
        if (me == 0)
            comm_send(c, x, 77, 1, &err);
        else
            comm_recv(c, x, 77, 0, &err);
        want.calls[me ? COMM_RECV : COMM_SEND] = 1;
        want.bytes[me ? COMM_RECV : COMM_SEND] = 77;
    }
    for (int k = 0; k < COMM_CALLS; k++)
        PROP_EXPECT(comm_counts(c)->calls[k] == want.calls[k] &&
                        comm_counts(c)->bytes[k] == want.bytes[k],
                    "rank %d, call %d: counted %lld and %lld bytes, not %lld and %lld", me, k,
                    (long long)comm_counts(c)->calls[k], (long long)comm_counts(c)->bytes[k],
                    (long long)want.calls[k], (long long)want.bytes[k]);
    free(all);
    free(sizes);
    return failures;
}

/* Everything, under mpirun, and one property more (or NULL); the program's exit code. */
static inline int prop_main(const char *test, int (*more)(struct comm *world))
{
    struct comm *world = NULL;
    struct tp_err err = { 0 };
    struct rng r = { 0 };
    int failures = 0;

    if (comm_init(&world, 1 << 28, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 3;
    }
    if (comm_rank(world) == 0)
        r = rng_start(test);
    PROP_EXPECT(!comm_broadcast(world, &r, sizeof r, 0, &err), "%s", err.msg);
    PROP_EXPECT(getenv("OMPI_COMM_WORLD_SIZE") != NULL, "not started by mpirun");
    PROP_EXPECT(comm_local_size(world) == comm_size(world), "local size %d",
                comm_local_size(world));
    for (int i = 0; i < 3; i++)
        failures += prop_world(world, rng_next(&r));
    for (int columns = 1; columns <= comm_size(world); columns++)
        if (comm_size(world) % columns == 0)
            failures += prop_grid(world, columns, rng_next(&r));
    failures += prop_counts(world);
    if (more && comm_size(world) > 1)
        failures += more(world);
    comm_end(world, failures ? TP_E_CORRUPT : TP_OK);
    return failures > 0;
}

#endif
