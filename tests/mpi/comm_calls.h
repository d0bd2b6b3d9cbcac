/*
 * tests/mpi/comm_calls.h - a property for each call on a communicator, at random sizes.
 *
 * Each is called by all members with the same random numbers, so that a rank knows every other
 * rank's input and computes the result itself. They return the number of failures, which are
 * printed.
 */
#ifndef TESTS_MPI_COMM_CALLS_H
#define TESTS_MPI_COMM_CALLS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/mpi/comm_expected.h"

/* Bytes of a buffer (the largest size twice, of 8 bytes an element). */
enum { PROP_BYTES = 5 << 19 };

/* Jobs in the background at a time, each with a slice of its own. */
enum { PROP_JOBS = 4, PROP_SLICE = PROP_BYTES / PROP_JOBS };

#define PROP_EXPECT(ok, ...)                                \
    do {                                                    \
        if (!(ok)) {                                        \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
            fprintf(stderr, __VA_ARGS__);                   \
            fputc('\n', stderr);                            \
            failures++;                                     \
        }                                                   \
    } while (0)

/* Sizes around the ones where the way changes, and any other. */
static inline int64_t prop_size(struct rng *r)
{
    static const int64_t edges[] = { 0,    1,    15,    16,    17,    2047,  2048,  2049,  4095,
                                     4096, 4097, 32768, 32769, 65535, 65536, 65537, 131073 };

    if (rng_int(r, 0, 2) == 0)
        return edges[rng_int(r, 0, sizeof edges / sizeof *edges - 1)];
    return rng_int(r, 0, (int64_t)1 << rng_int(r, 0, 17));
}

/* A communicator under test: ranks[] are its members' numbers in the world. */
struct prop {
    struct comm *comm;
    const int *ranks;
    char *shared, *plain, *expect; /* shared: of comm_alloc */
};

/* Where this rank puts a buffer is its own matter. */
static inline char *prop_place(const struct prop *p, uint64_t call)
{
    struct rng r = { call * 31u + (uint64_t)comm_rank(p->comm) };
    int mode = (int)(call % 3);

    return (mode == 0 || (mode == 1 && rng_next(&r) % 2)) ? p->shared : p->plain;
}

static inline int prop_check_bytes(const struct prop *p, const void *got, int64_t n_bytes,
                                   uint64_t call, const char *what)
{
    int failures = 0;

    for (int64_t i = 0; i < n_bytes; i++)
        if (((const char *)got)[i] != p->expect[i]) {
            PROP_EXPECT(false, "%s %llu: rank %d of %d differs at byte %lld of %lld", what,
                        (unsigned long long)call, comm_rank(p->comm), comm_size(p->comm),
                        (long long)i, (long long)n_bytes);
            break;
        }
    return failures;
}

static inline int prop_all_reduce(const struct prop *p, struct rng *r, uint64_t call)
{
    enum comm_type type = (enum comm_type)rng_int(r, 0, 2);
    enum comm_op op = (enum comm_op)rng_int(r, 0, 1);
    int64_t n = prop_size(r);
    char *buf = prop_place(p, call);
    struct tp_err err = { 0 };
    int failures = 0;

    for (int64_t i = 0; i < n; i++)
        prop_store(buf, i, type, prop_value(call, p->ranks[comm_rank(p->comm)], i));
    prop_reduce(p->expect, n, 0, p->ranks, comm_size(p->comm), call, type, op);
    PROP_EXPECT(comm_all_reduce(p->comm, buf, n, type, op, &err) == TP_OK, "%s", err.msg);
    return failures + prop_check_bytes(p, buf, n * prop_width(type), call, "all_reduce");
}

static inline int prop_all_gather(const struct prop *p, struct rng *r, uint64_t call)
{
    enum comm_type type = (enum comm_type)rng_int(r, 0, 2);
    int size = comm_size(p->comm), me = comm_rank(p->comm);
    int64_t n = prop_size(r) / size, width = prop_width(type);
    bool in_place = rng_int(r, 0, 1);
    char *out = prop_place(p, call);
    char *in = in_place ? out + me * n * width : out + size * n * width;
    struct tp_err err = { 0 };
    int failures = 0;

    for (int64_t i = 0; i < n; i++)
        prop_store(in, i, type, prop_value(call, p->ranks[me], i));
    for (int q = 0; q < size; q++)
        for (int64_t i = 0; i < n; i++)
            prop_store(p->expect + q * n * width, i, type, prop_value(call, p->ranks[q], i));
    PROP_EXPECT(comm_all_gather(p->comm, out, in, n, type, &err) == TP_OK, "%s", err.msg);
    return failures + prop_check_bytes(p, out, size * n * width, call, "all_gather");
}

static inline int prop_reduce_scatter(const struct prop *p, struct rng *r, uint64_t call)
{
    enum comm_type type = (enum comm_type)rng_int(r, 0, 2);
    int size = comm_size(p->comm), me = comm_rank(p->comm);
    int64_t n = prop_size(r) / size, width = prop_width(type);
    bool in_place = rng_int(r, 0, 1);
    char *in = prop_place(p, call);
    char *out = in_place ? in + me * n * width : in + size * n * width;
    struct tp_err err = { 0 };
    int failures = 0;

    for (int64_t i = 0; i < n * size; i++)
        prop_store(in, i, type, prop_value(call, p->ranks[me], i));
    prop_reduce(p->expect, n, me * n, p->ranks, size, call, type, COMM_SUM);
    PROP_EXPECT(comm_reduce_scatter(p->comm, out, in, n, type, &err) == TP_OK, "%s", err.msg);
    return failures + prop_check_bytes(p, out, n * width, call, "reduce_scatter");
}

/* Bytes of a message; they depend on who sends. */
static inline void prop_bytes(char *buf, int64_t n, uint64_t call, int rank)
{
    struct rng r = { call * 65537u + (uint64_t)rank };

    for (int64_t i = 0; i < n; i++)
        buf[i] = (char)rng_next(&r);
}

static inline int prop_broadcast(const struct prop *p, struct rng *r, uint64_t call)
{
    int root = (int)rng_int(r, 0, comm_size(p->comm) - 1);
    int64_t n = prop_size(r) * 5;
    char *buf = prop_place(p, call);
    struct tp_err err = { 0 };
    int failures = 0;

    prop_bytes(p->expect, n, call, root);
    memset(buf, 0, (size_t)n);
    if (comm_rank(p->comm) == root)
        memcpy(buf, p->expect, (size_t)n);
    PROP_EXPECT(comm_broadcast(p->comm, buf, n, root, &err) == TP_OK, "%s", err.msg);
    return failures + prop_check_bytes(p, buf, n, call, "broadcast");
}

static inline int prop_gather(const struct prop *p, struct rng *r, uint64_t call)
{
    int size = comm_size(p->comm), me = comm_rank(p->comm);
    int64_t sizes[64], want[64], total = 0;
    char *buf = prop_place(p, call);
    void *all = sizes; /* anything but NULL */
    struct tp_err err = { 0 };
    int failures = 0;

    for (int q = 0; q < size; q++) {
        want[q] = rng_int(r, 0, 3) ? prop_size(r) * 8 / size : 0;
        prop_bytes(p->expect + total, want[q], call, p->ranks[q]);
        total += want[q];
    }
    prop_bytes(buf, want[me], call, p->ranks[me]);
    PROP_EXPECT(comm_gather(p->comm, buf, want[me], &all, sizes, &err) == TP_OK, "%s", err.msg);
    if (me != 0) {
        PROP_EXPECT(all == NULL, "gather %llu: rank %d got something", (unsigned long long)call,
                    me);
        return failures;
    }
    PROP_EXPECT(memcmp(sizes, want, (size_t)size * sizeof *want) == 0, "gather: sizes differ");
    failures += prop_check_bytes(p, all, total, call, "gather");
    free(all);
    return failures;
}

/* Messages round the ring, both ways: each rank first sends small ones to both sides. */
static inline int prop_ring(const struct prop *p, struct rng *r, uint64_t call)
{
    int size = comm_size(p->comm), me = comm_rank(p->comm);
    int next = (me + 1) % size, before = (me + size - 1) % size;
    int64_t n = rng_int(r, 0, 64 << 10);
    char *buf = prop_place(p, call), *in = buf + (64 << 10);
    struct tp_err err = { 0 };
    int failures = 0;

    if (size == 1)
        return 0;
    prop_bytes(buf, n, call, p->ranks[me]);
    PROP_EXPECT(!comm_send(p->comm, buf, n, next, &err), "%s", err.msg);
    PROP_EXPECT(!comm_recv(p->comm, in, n, before, &err), "%s", err.msg);
    prop_bytes(p->expect, n, call, p->ranks[before]);
    failures += prop_check_bytes(p, in, n, call, "ring");
    PROP_EXPECT(!comm_send(p->comm, buf, n, before, &err), "%s", err.msg);
    PROP_EXPECT(!comm_recv(p->comm, in, n, next, &err), "%s", err.msg);
    prop_bytes(p->expect, n, call, p->ranks[next]);
    return failures + prop_check_bytes(p, in, n, call, "ring back");
}

/* Large ones down the line, as pipeline stages do, several in a row. */
static inline int prop_line(const struct prop *p, struct rng *r, uint64_t call)
{
    int size = comm_size(p->comm), me = comm_rank(p->comm);
    int64_t n = prop_size(r) * 8;
    char *buf = prop_place(p, call);
    struct tp_err err = { 0 };
    int failures = 0;

    for (int i = 0; i < 3; i++) {
        prop_bytes(p->expect, n, call + (uint64_t)i, 0);
        if (me == 0)
            memcpy(buf, p->expect, (size_t)n);
        else
            PROP_EXPECT(!comm_recv(p->comm, buf, n, me - 1, &err), "%s", err.msg);
        failures += prop_check_bytes(p, buf, n, call, "line");
        if (me + 1 < size)
            PROP_EXPECT(!comm_send(p->comm, buf, n, me + 1, &err), "%s", err.msg);
    }
    return failures;
}

static inline int prop_agree(const struct prop *p, struct rng *r, uint64_t call)
{
    int size = comm_size(p->comm), me = comm_rank(p->comm);
    int first = (int)rng_int(r, 0, size), second = (int)rng_int(r, 0, size);
    struct tp_err err = { 0 };
    tp_status st = TP_OK, got;
    char want[64];
    int failures = 0;

    if (me == first || me == second)
        st = tp_fail(&err, me % 2 ? TP_E_CORRUPT : TP_E_IO, "call %llu went wrong",
                     (unsigned long long)call);
    got = comm_agree(p->comm, st, &err);
    first = first < second ? first : second;
    if (first == size) {
        PROP_EXPECT(got == TP_OK, "agree: rank %d gets status %d, none failed", me, got);
        return failures;
    }
    PROP_EXPECT(got == (first % 2 ? TP_E_CORRUPT : TP_E_IO) && err.status == got,
                "agree: rank %d gets status %d of rank %d", me, got, first);
    snprintf(want, sizeof want, "rank %d: call %llu went wrong", first, (unsigned long long)call);
    PROP_EXPECT(strcmp(err.msg, me == first ? strstr(want, "call") : want) == 0,
                "agree: rank %d reads '%s'", me, err.msg);
    return failures;
}

/* Large messages posted to both sides before either is received: waiting sends would deadlock. */
static inline int prop_post(const struct prop *p, struct rng *r, uint64_t call)
{
    int size = comm_size(p->comm), me = comm_rank(p->comm);
    int next = (me + 1) % size, before = (me + size - 1) % size;
    int64_t n = 1 + prop_size(r) * 3;
    struct comm_request tickets[2] = { 0 };
    struct tp_err err = { 0 };
    int failures = 0;

    if (size < 2)
        return 0;
    for (int side = 0; side < 2; side++) {
        char *buf = p->shared + side * n;

        prop_bytes(p->expect, n, call + (uint64_t)side, p->ranks[me]);
        memcpy(buf, p->expect, (size_t)n);
        PROP_EXPECT(!comm_post(p->comm, buf, n, side ? before : next, &tickets[side], &err), "%s",
                    err.msg);
    }
    for (int side = 0; side < 2; side++) {
        int from = side ? next : before;

        PROP_EXPECT(!comm_recv(p->comm, p->plain, n, from, &err), "%s", err.msg);
        prop_bytes(p->expect, n, call + (uint64_t)side, p->ranks[from]);
        failures += prop_check_bytes(p, p->plain, n, call, "post");
    }
    for (int side = 0; side < 2; side++) {
        PROP_EXPECT(!comm_wait(p->comm, &tickets[side], &err), "%s", err.msg);
        PROP_EXPECT(!tickets[side].pending, "a ticket that was waited for");
        memset(p->shared + side * n, 0, (size_t)n); /* which is ours again */
    }
    return failures;
}

static inline int prop_barrier(const struct prop *p, struct rng *r, uint64_t call)
{
    struct tp_err err = { 0 };
    int failures = 0;

    (void)r;
    (void)call;
    PROP_EXPECT(!comm_barrier(p->comm, &err), "%s", err.msg);
    return failures;
}

/* One job of a random kind in slice k of the shared buffer; its result is to be `*n_bytes` at *got.
 */
static inline tp_status prop_start(const struct prop *p, struct rng *r, uint64_t call, int k,
                                   struct comm_work *job, char **got, int64_t *n_bytes,
                                   struct tp_err *err)
{
    enum comm_type type = (enum comm_type)rng_int(r, 0, 2);
    int size = comm_size(p->comm), me = comm_rank(p->comm), kind = (int)rng_int(r, 0, 2);
    int64_t width = prop_width(type), n = rng_int(r, 0, (int64_t)1 << rng_int(r, 0, 16)) / size;
    char *buf = p->shared + k * PROP_SLICE, *expect = p->expect + k * PROP_SLICE;
    char *own = buf + me * n * width;

    for (int64_t i = 0; i < n * size; i++)
        prop_store(buf, i, type, prop_value(call, p->ranks[me], i));
    *got = buf;
    *n_bytes = n * size * width;
    if (kind == 0) {
        prop_reduce(expect, n * size, 0, p->ranks, size, call, type, COMM_SUM);
        return comm_start_all_reduce(p->comm, buf, n * size, type, COMM_SUM, job, err);
    }
    if (kind == 1) {
        for (int64_t i = 0; i < n * size; i++)
            prop_store(expect, i, type, prop_value(call, p->ranks[i / n], i));
        return comm_start_all_gather(p->comm, buf, own, n, type, job, err);
    }
    *got = own;
    *n_bytes = n * width;
    prop_reduce(expect, n, me * n, p->ranks, size, call, type, COMM_SUM);
    return comm_start_reduce_scatter(p->comm, own, buf, n, type, job, err);
}

/* Jobs in the background, finished in any order; nothing else may be called meanwhile. */
static inline int prop_background(const struct prop *p, struct rng *r, uint64_t call)
{
    struct comm_work jobs[PROP_JOBS] = { { 0 } }, none = { 0 };
    char *got[PROP_JOBS];
    int64_t n_bytes[PROP_JOBS];
    int n = (int)rng_int(r, 1, PROP_JOBS), first = (int)rng_int(r, 0, n - 1), failures = 0;
    struct tp_err err = { 0 };

    for (int k = 0; k < n; k++)
        PROP_EXPECT(!prop_start(p, r, call + (uint64_t)k, k, &jobs[k], &got[k], &n_bytes[k], &err),
                    "%s", err.msg);
    if (comm_overlaps(p->comm))
        PROP_EXPECT(comm_barrier(p->comm, &err) == TP_E_INTERNAL, "a barrier beside jobs");
    PROP_EXPECT(!comm_finish(p->comm, &none, &err), "%s", err.msg);
    for (int i = 0; i < n; i++) {
        int k = (first + i) % n;

        PROP_EXPECT(!comm_finish(p->comm, &jobs[k], &err), "%s", err.msg);
        PROP_EXPECT(!memcmp(got[k], p->expect + k * PROP_SLICE, (size_t)n_bytes[k]),
                    "job %d of %d, call %llu: rank %d of %d has other bytes", k, n,
                    (unsigned long long)call, comm_rank(p->comm), comm_size(p->comm));
    }
    return failures;
}

#endif
