/*
 * tests/unit/device_cases.h - what every device does: test cases that use only device/device.h.
 * Each takes an open device and closes it.
 */
#ifndef TESTS_UNIT_DEVICE_CASES_H
#define TESTS_UNIT_DEVICE_CASES_H

#include <criterion/criterion.h>
#include <string.h>

#include "device/device.h"
#include "tests/unit/random.h"

#define DEVICE_CASE static inline __attribute__((unused))

DEVICE_CASE struct device_queue *open_queue(struct device *d, enum device_queue_kind kind)
{
    struct device_queue *q;
    struct tp_err err = { 0 };

    cr_assert_eq(device_queue_open(d, &q, kind, &err), TP_OK, "%s", err.msg);
    return q;
}

DEVICE_CASE struct device_event *open_event(struct device *d)
{
    struct device_event *e;
    struct tp_err err = { 0 };

    cr_assert_eq(device_event_open(d, &e, &err), TP_OK, "%s", err.msg);
    return e;
}

DEVICE_CASE unsigned char *alloc_bytes(struct device *d, int64_t n_bytes, bool is_pinned)
{
    void *p = NULL;
    struct tp_err err = { 0 };
    tp_status st =
        is_pinned ? device_alloc_pinned(d, &p, n_bytes, &err) : device_alloc(d, &p, n_bytes, &err);

    cr_assert_eq(st, TP_OK, "%s", err.msg);
    cr_assert_eq((uintptr_t)p % 64, 0);
    return p;
}

/* Wait until the queue has finished its work. Returns the device's failure. */
DEVICE_CASE struct tp_err finish(struct device_queue *q)
{
    struct device_event *e;
    struct tp_err err = { 0 };

    if (device_event_open(q->device, &e, &err) != TP_OK)
        return err;
    device_record(q, e);
    device_event_sync(e, &err);
    device_event_close(e);
    return err;
}

DEVICE_CASE void case_an_event_that_was_never_recorded_is_passed(struct device *d)
{
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    struct device_event *e = open_event(d);
    struct tp_err err = { 0 };

    cr_assert(device_event_done(e));
    device_wait(q, e);
    cr_assert_eq(device_event_sync(e, &err), TP_OK);
    device_event_close(e);
    device_queue_close(q);
    device_close(d);
}

DEVICE_CASE void case_memory_is_zeroed_copied_and_filled(struct device *d)
{
    enum { N = 1000 };
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    unsigned char *a = alloc_bytes(d, N, false), *b = alloc_bytes(d, N, true);
    unsigned char *back = alloc_bytes(d, N, true);

    device_copy(q, back, a, N);
    cr_assert_eq(finish(q).status, TP_OK);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(back[i] + b[i], 0);
        b[i] = (unsigned char)(i * 7);
    }
    device_copy(q, a, b, N);
    device_fill(q, a, 3, 10);
    device_copy(q, back, a, N);
    cr_assert_eq(finish(q).status, TP_OK);
    for (int i = 0; i < N; i++)
        cr_assert_eq(back[i], i < 10 ? 3 : b[i]);
    device_free(d, a);
    device_free(d, b);
    device_free(d, NULL);
    device_queue_close(q);
    device_close(d);
}

/* Random copies of rows, on the device and by hand; some repeat one row. */
DEVICE_CASE void case_copies_of_rows(struct device *d)
{
    enum { N = 4096 };
    struct rng r = rng_start("device/copies_of_rows");
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COPY);
    unsigned char *from = alloc_bytes(d, N, false), *to = alloc_bytes(d, N, false);
    unsigned char *src = alloc_bytes(d, N, true), *got = alloc_bytes(d, N, true);
    unsigned char want[N] = { 0 };

    for (int i = 0; i < N; i++)
        src[i] = (unsigned char)rng_next(&r);
    device_copy(q, from, src, N);
    for (int k = 0; k < 50; k++) {
        int64_t rows = rng_int(&r, 0, 12), bytes = rng_int(&r, 0, 100);
        int64_t dst_pitch = bytes + rng_int(&r, 0, 40) * rng_int(&r, 0, 1);
        int64_t src_pitch = rng_int(&r, 0, 2) ? bytes + rng_int(&r, 0, 40) : 0;
        int64_t at = rng_int(&r, 0, 1000);

        device_copy_2d(
            q, &(struct device_copy){ to + at, from + at / 2, rows, bytes, dst_pitch, src_pitch });
        for (int64_t i = 0; i < rows; i++)
            memcpy(want + at + i * dst_pitch, src + at / 2 + i * src_pitch, (size_t)bytes);
    }
    device_copy(q, got, to, N);
    cr_assert_eq(finish(q).status, TP_OK);
    cr_assert_eq(memcmp(got, want, N), 0);
    device_queue_close(q);
    device_close(d);
}

/* A random program of copies between cells on three queues. Only queue c % 3 writes cell c. Events
 * order a write of another queue before a read, and the read before the next write. */
DEVICE_CASE void case_events_order_queues(struct device *d)
{
    enum { QUEUES = 3, CELLS = 9, BYTES = 64, STEPS = 80 };
    struct rng r = rng_start("device/events_order_queues");
    struct device_queue *q[QUEUES];
    struct device_event *e = open_event(d);
    unsigned char want[CELLS][BYTES] = { { 0 } };
    unsigned char *cell = alloc_bytes(d, sizeof want, false);
    unsigned char *got = alloc_bytes(d, sizeof want, true);

    for (int i = 0; i < QUEUES; i++)
        q[i] = open_queue(d, (enum device_queue_kind)i);
    for (int i = 0; i < STEPS; i++) {
        int to = (int)rng_int(&r, 0, CELLS - 1), from = (int)rng_int(&r, 0, CELLS - 1);
        struct device_queue *own = q[to % QUEUES], *other = q[from % QUEUES];

        if (to == from) {
            device_fill(own, cell + to * BYTES, i, BYTES);
            memset(want[to], i, BYTES);
            continue;
        }
        device_record(other, e);
        device_wait(own, e);
        device_copy(own, cell + to * BYTES, cell + from * BYTES, BYTES - 1);
        memcpy(want[to], want[from], BYTES - 1);
        device_record(own, e);
        device_wait(other, e);
    }
    for (int i = 1; i < QUEUES; i++) {
        device_record(q[i], e);
        device_wait(q[0], e);
    }
    device_copy(q[0], got, cell, sizeof want);
    cr_assert_eq(finish(q[0]).status, TP_OK);
    cr_assert_eq(memcmp(got, want, sizeof want), 0);
    device_event_close(e);
    for (int i = 0; i < QUEUES; i++)
        device_queue_close(q[i]);
    device_close(d);
}

DEVICE_CASE void case_a_failure_from_outside_is_kept(struct device *d)
{
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    struct tp_err err = { 0 };

    tp_fail(&err, TP_E_COMM, "a rank is gone");
    device_fail(d, &err);
    tp_fail(&err, TP_E_INTERNAL, "another failure");
    device_fail(d, &err);
    for (int i = 0; i < 2; i++) {
        err = finish(q);
        cr_assert_eq(err.status, TP_E_COMM);
        cr_assert_str_eq(err.msg, "a rank is gone");
    }
    device_queue_close(q);
    device_close(d);
}

DEVICE_CASE void case_too_much_memory_is_refused_with_a_sentence(struct device *d)
{
    struct tp_err err = { 0 };
    void *p = NULL;
    tp_status st;

    st = device_alloc(d, &p, INT64_C(1) << 60, &err);
    cr_assert(st == TP_E_NOMEM || st == TP_E_GPU_FULL, "status %d", (int)st);
    cr_assert(strstr(err.msg, "1152921504606846976"), "%s", err.msg);
    cr_assert_eq(device_alloc(d, &p, 100, &err), TP_OK, "the device can still be used");
    device_close(d);
}

#endif
