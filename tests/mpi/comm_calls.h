/*
 * tests/mpi/comm_calls.h - a property for each call on a communicator, with random sizes.
 *
 * All members call each property with the same random numbers, so that a rank knows each other
 * rank's input and computes the expected result itself. The functions print failures and return
 * their number.
 */
#ifndef TESTS_MPI_COMM_CALLS_H
#define TESTS_MPI_COMM_CALLS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/mpi/comm_expected.h"
#include "tests/unit/rank_device.h"

/* Bytes of a buffer: twice the largest number of elements, of 8 bytes each. */
enum { PROP_BYTES = 5 << 19 };

/* Collectives that are queued at once, and the bytes of a buffer for each. */
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

/* A random size, often near one at which the algorithm changes. */
static inline int64_t prop_size(struct rng *r)
{
    static const int64_t edges[] = { 0,    1,    15,    16,    17,    2047,  2048,  2049,  4095,
                                     4096, 4097, 32768, 32769, 65535, 65536, 65537, 131073 };

    if (rng_int(r, 0, 2) == 0)
        return edges[rng_int(r, 0, sizeof edges / sizeof *edges - 1)];
    return rng_int(r, 0, (int64_t)1 << rng_int(r, 0, 17));
}

/* A communicator under test. ranks[] has the global ranks of its members. */
struct prop {
    struct rank_device *device;
    struct comm *comm;
    const int *ranks;
    struct device_queue *second; /* a queue of kind DEVICE_QUEUE_COMM */
    struct device_event *events[PROP_JOBS];
    struct comm_request *requests[2]; /* NULL if the communicator has one rank */
    char *shared, *plain;             /* device memory; shared: from comm_alloc */
    char *expect;
};

/* Wait for all queued operations. */
static inline int prop_sync(const struct prop *p)
{
    struct tp_err err = { 0 };
    int failures = 0;

    PROP_EXPECT(!rank_device_sync(p->device, p->device->queue, &err), "%s", err.msg);
    return failures;
}

/* A buffer for a call. Each rank chooses its own place. */
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
    enum dtype type = PROP_TYPES[rng_int(r, 0, 3)];
    enum comm_op op = (enum comm_op)rng_int(r, 0, 1);
    int64_t n = prop_size(r);
    char *buf = prop_place(p, call);
    int failures;

    for (int64_t i = 0; i < n; i++)
        prop_store(buf, i, type, prop_value(call, p->ranks[comm_rank(p->comm)], i));
    prop_reduce(p->expect, n, 0, p->ranks, comm_size(p->comm), call, type, op);
    comm_all_reduce(p->comm, p->device->queue, buf, n, type, op);
    failures = prop_sync(p);
    return failures + prop_check_bytes(p, buf, n * dtype_bytes(type), call, "all_reduce");
}

static inline int prop_all_gather(const struct prop *p, struct rng *r, uint64_t call)
{
    enum dtype type = PROP_TYPES[rng_int(r, 0, 3)];
    int size = comm_size(p->comm), me = comm_rank(p->comm);
    int64_t n = prop_size(r) / size, width = dtype_bytes(type);
    bool in_place = rng_int(r, 0, 1);
    char *out = prop_place(p, call);
    char *in = in_place ? out + me * n * width : out + size * n * width;
    int failures;

    for (int64_t i = 0; i < n; i++)
        prop_store(in, i, type, prop_value(call, p->ranks[me], i));
    for (int q = 0; q < size; q++)
        for (int64_t i = 0; i < n; i++)
            prop_store(p->expect + q * n * width, i, type, prop_value(call, p->ranks[q], i));
    comm_all_gather(p->comm, p->device->queue, out, in, n, type);
    failures = prop_sync(p);
    return failures + prop_check_bytes(p, out, size * n * width, call, "all_gather");
}

/* Rows that rank `from` sends to rank `to`: a function of the call that both can compute. */
static inline int32_t prop_rows(const struct prop *p, uint64_t call, int from, int to)
{
    struct rng r = { call * 1000003u + (uint64_t)p->ranks[from] * 7919u + (uint64_t)p->ranks[to] };

    return (int32_t)rng_int(&r, 0, 4);
}

/* Each pair of ranks has its own number of rows, often none. The numbers are in shared memory,
 * because they are device memory. */
static inline int prop_all_to_all(const struct prop *p, struct rng *r, uint64_t call)
{
    int size = comm_size(p->comm), me = comm_rank(p->comm);
    int64_t width = rng_int(r, 1, (PROP_BYTES - 4096) / (8 * size));
    int32_t *send = (int32_t *)(void *)p->shared, *recv = send + size + 1;
    char *in = p->shared + 4096, *out;
    struct comm_rows rows = { .row_bytes = width, .send = send, .recv = recv };
    int failures;

    send[0] = recv[0] = 0;
    for (int q = 0; q < size; q++) {
        send[q + 1] = send[q] + prop_rows(p, call, me, q);
        recv[q + 1] = recv[q] + prop_rows(p, call, q, me);
        memset(in + send[q] * width, me * 31 + q + (int)(call % 7),
               (size_t)((send[q + 1] - send[q]) * width));
        memset(p->expect + recv[q] * width, q * 31 + me + (int)(call % 7),
               (size_t)((recv[q + 1] - recv[q]) * width));
    }
    out = in + send[size] * width;
    rows.counted = send[size];
    comm_all_to_all(p->comm, p->device->queue, out, in, &rows);
    failures = prop_sync(p);
    return failures + prop_check_bytes(p, out, recv[size] * width, call, "all_to_all");
}

static inline int prop_reduce_scatter(const struct prop *p, struct rng *r, uint64_t call)
{
    enum dtype type = PROP_TYPES[rng_int(r, 0, 3)];
    int size = comm_size(p->comm), me = comm_rank(p->comm);
    int64_t n = prop_size(r) / size, width = dtype_bytes(type);
    bool in_place = rng_int(r, 0, 1);
    char *in = prop_place(p, call);
    char *out = in_place ? in + me * n * width : in + size * n * width;
    int failures;

    for (int64_t i = 0; i < n * size; i++)
        prop_store(in, i, type, prop_value(call, p->ranks[me], i));
    prop_reduce(p->expect, n, me * n, p->ranks, size, call, type, COMM_SUM);
    comm_reduce_scatter(p->comm, p->device->queue, out, in, n, type);
    failures = prop_sync(p);
    return failures + prop_check_bytes(p, out, n * width, call, "reduce_scatter");
}

/* The bytes of a message; they depend on the sender. */
static inline void prop_bytes(char *buf, int64_t n, uint64_t call, int rank)
{
    struct rng r = { call * 65537u + (uint64_t)rank };

    for (int64_t i = 0; i < n; i++)
        buf[i] = (char)rng_next(&r);
}

/* Send n bytes. The request completes when `buf` may be reused. */
static inline void prop_send(const struct prop *p, const void *buf, int64_t n, int to, int request)
{
    comm_send(p->comm, p->device->queue, buf, n, DTYPE_U8, to, p->requests[request]);
}

/* Receive n bytes, which must be those of prop_bytes for `call` and rank `from`. */
static inline int prop_recv(const struct prop *p, char *in, int64_t n, int from, uint64_t call,
                            const char *what)
{
    int failures;

    comm_recv(p->comm, p->device->queue, in, n, DTYPE_U8, from);
    failures = prop_sync(p);
    prop_bytes(p->expect, n, call, p->ranks[from]);
    return failures + prop_check_bytes(p, in, n, call, what);
}

/* Each rank sends large messages to both neighbours before it receives any. If a send waited for
 * its receiver, this would deadlock. */
static inline int prop_ring(const struct prop *p, struct rng *r, uint64_t call)
{
    int size = comm_size(p->comm), me = comm_rank(p->comm);
    int next = (me + 1) % size, before = (me + size - 1) % size, failures = 0;
    int64_t n = rng_int(r, 0, 3) ? 1 + prop_size(r) * 3 : 0;

    if (size < 2)
        return 0;
    for (int side = 0; side < 2; side++) {
        prop_bytes(p->shared + side * n, n, call + (uint64_t)side, p->ranks[me]);
        prop_send(p, p->shared + side * n, n, side ? before : next, side);
    }
    for (int side = 0; side < 2; side++)
        failures += prop_recv(p, p->plain, n, side ? next : before, call + (uint64_t)side, "ring");
    for (int side = 0; side < 2; side++) {
        comm_wait(p->comm, p->device->queue, p->requests[side]);
        failures += prop_sync(p);
        memset(p->shared + side * n, 0, (size_t)n); /* this rank may reuse the buffer */
    }
    comm_wait(p->comm, p->device->queue, p->requests[0]); /* without a message this does nothing */
    return failures + prop_sync(p);
}

/* Each rank sends to the next one and receives from the previous one, in one call, twice: around
 * the ring a block comes from two ranks before. */
static inline int prop_exchange(const struct prop *p, struct rng *r, uint64_t call)
{
    int size = comm_size(p->comm), me = comm_rank(p->comm), from = (me + 2 * size - 2) % size;
    int64_t n = rng_int(r, 0, 3) ? 1 + prop_size(r) * 2 : 0;
    char *first = p->shared, *second = p->shared + n, *third = p->plain;
    int failures;

    if (size < 2)
        return 0;
    prop_bytes(first, n, call, p->ranks[me]);
    comm_exchange(p->comm, p->device->queue, second, first, n, DTYPE_U8);
    comm_exchange(p->comm, p->device->queue, third, second, n, DTYPE_U8);
    failures = prop_sync(p);
    memset(first, 0, (size_t)(2 * n)); /* this rank may reuse the buffers */
    prop_bytes(p->expect, n, call, p->ranks[from]);
    return failures + prop_check_bytes(p, third, n, call, "exchange");
}

/* Several large messages in a row from each rank to the next, as between pipeline stages. */
static inline int prop_line(const struct prop *p, struct rng *r, uint64_t call)
{
    int size = comm_size(p->comm), me = comm_rank(p->comm), failures = 0;
    int64_t n = prop_size(r) * 2;

    for (int i = 0; i < 3; i++) {
        int k = i % 2;
        char *buf = p->shared + k * n;

        if (size > 1)
            comm_wait(p->comm, p->device->queue, p->requests[k]);
        failures += prop_sync(p);
        if (me > 0)
            failures += prop_recv(p, buf, n, me - 1, call + (uint64_t)i, "line");
        prop_bytes(buf, n, call + (uint64_t)i, p->ranks[me]);
        if (me + 1 < size)
            prop_send(p, buf, n, me + 1, k);
    }
    for (int k = 0; k < 2 && size > 1; k++)
        comm_wait(p->comm, p->device->queue, p->requests[k]);
    return failures + prop_sync(p);
}

/* Queue one collective of a random kind on part k of the shared buffer. It writes its result of
 * *n_bytes to *got. */
static inline void prop_queue(const struct prop *p, struct rng *r, uint64_t call, int k, char **got,
                              int64_t *n_bytes)
{
    enum dtype type = PROP_TYPES[rng_int(r, 0, 3)];
    int size = comm_size(p->comm), me = comm_rank(p->comm), kind = (int)rng_int(r, 0, 2);
    int64_t width = dtype_bytes(type), n = rng_int(r, 0, (int64_t)1 << rng_int(r, 0, 16)) / size;
    char *buf = p->shared + k * PROP_SLICE, *expect = p->expect + k * PROP_SLICE;
    char *own = buf + me * n * width;

    for (int64_t i = 0; i < n * size; i++)
        prop_store(buf, i, type, prop_value(call, p->ranks[me], i));
    *got = kind == 2 ? own : buf;
    *n_bytes = kind == 2 ? n * width : n * size * width;
    if (kind == 0) {
        prop_reduce(expect, n * size, 0, p->ranks, size, call, type, COMM_SUM);
        comm_all_reduce(p->comm, p->second, buf, n * size, type, COMM_SUM);
    } else if (kind == 1) {
        for (int64_t i = 0; i < n * size; i++)
            prop_store(expect, i, type, prop_value(call, p->ranks[i / n], i));
        comm_all_gather(p->comm, p->second, buf, own, n, type);
    } else {
        prop_reduce(expect, n, me * n, p->ranks, size, call, type, COMM_SUM);
        comm_reduce_scatter(p->comm, p->second, own, buf, n, type);
    }
}

/* Collectives on a second queue, with waits in any order. If the communicator has all ranks, they
 * also send control messages before the waits. */
static inline int prop_second(const struct prop *p, struct rng *r, uint64_t call)
{
    struct comm_control *c = p->device->control;
    char *got[PROP_JOBS];
    int64_t n_bytes[PROP_JOBS];
    int n = (int)rng_int(r, 1, PROP_JOBS), first = (int)rng_int(r, 0, n - 1), failures = 0;
    struct tp_err err = { 0 };

    for (int k = 0; k < n; k++) {
        prop_queue(p, r, call + (uint64_t)k, k, &got[k], &n_bytes[k]);
        device_record(p->second, p->events[k]);
    }
    if (comm_size(p->comm) == control_size(c))
        PROP_EXPECT(!control_barrier(c, &err), "%s", err.msg);
    for (int i = 0; i < n; i++) {
        int k = (first + i) % n;

        PROP_EXPECT(!device_event_sync(p->events[k], &err), "%s", err.msg);
        PROP_EXPECT(!memcmp(got[k], p->expect + k * PROP_SLICE, (size_t)n_bytes[k]),
                    "collective %d of %d, call %llu: rank %d of %d has other bytes", k, n,
                    (unsigned long long)call, comm_rank(p->comm), comm_size(p->comm));
    }
    device_record(p->second, p->events[0]); /* the communicator is used on another queue now */
    PROP_EXPECT(!device_event_sync(p->events[0], &err), "%s", err.msg);
    return failures;
}

#endif
