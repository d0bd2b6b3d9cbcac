/* tests/unit/device_null.c - a device that runs nothing and whose memory cannot be accessed. */
#include "device/null/null.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <unistd.h>

static void open_all(struct device **d, struct device_queue **q, void **memory, void **pinned)
{
    struct tp_err err = { 0 };

    cr_assert_eq(null_device_open(d, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(device_queue_open(*d, q, DEVICE_QUEUE_COMM, &err), TP_OK);
    cr_assert_eq(device_alloc(*d, memory, INT64_C(1) << 40, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(device_alloc_pinned(*d, pinned, 100, &err), TP_OK);
}

static tp_status fails(struct device_queue *q, const void *args, struct tp_err *err)
{
    (void)q;
    (void)args;
    return tp_fail(err, TP_E_INTERNAL, "this was run");
}

Test(device_null, runs_nothing_and_never_fails)
{
    struct device *d;
    struct device_queue *q;
    struct device_event *e;
    void *memory, *pinned;
    struct tp_err err = { 0 };

    open_all(&d, &q, &memory, &pinned);
    cr_assert_eq(device_event_open(d, &e, &err), TP_OK);
    device_submit(q, &(struct device_operation){ .fn = fails });
    device_fill(q, memory, 1, INT64_C(1) << 40);
    device_copy(q, pinned, memory, 100);
    device_record(q, e);
    device_wait(q, e);
    cr_assert(device_event_done(e));
    cr_assert_eq(device_event_sync(e, &err), TP_OK);
    cr_assert_eq(*(char *)pinned, 0, "pinned memory is real, and nothing was copied to it");
    device_free(d, memory);
    device_event_close(e);
    device_queue_close(q);
    device_close(d);
}

/* The kernel reads the byte for the test and returns an error when that is not allowed. */
Test(device_null, memory_cannot_be_accessed)
{
    struct device *d;
    struct device_queue *q;
    void *memory, *pinned;
    int ends[2];

    open_all(&d, &q, &memory, &pinned);
    cr_assert_eq(pipe(ends), 0);
    cr_assert(write(ends[1], memory, 1) == -1 && errno == EFAULT);
    cr_assert_eq(write(ends[1], pinned, 1), 1);
    close(ends[0]);
    close(ends[1]);
    device_queue_close(q);
    device_close(d);
}
