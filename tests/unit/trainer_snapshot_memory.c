/*
 * tests/unit/trainer_snapshot_memory.c - memory for the copies of a state is allocated while the
 * caller does something else, and a failure is the caller's when it asks for the memory.
 */
#include <criterion/criterion.h>
#include <semaphore.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "trainer/snapshot_memory.h"

static sem_t begun, may_end;
static const struct device_ops *real;
static bool fails, waits;

static tp_status alloc_late(struct device *d, void **out, int64_t n_bytes, struct tp_err *err)
{
    if (waits) {
        sem_post(&begun);
        sem_wait(&may_end);
    }
    return fails ? tp_fail(err, TP_E_NOMEM, "out of pinned host memory: %lld bytes",
                           (long long)n_bytes)
                 : real->alloc_pinned(d, out, n_bytes, err);
}

static struct device *open_device(struct device_ops *ops, bool in_threads)
{
    const struct cpu_options options = { .threads = 1 };
    struct device *d;
    struct tp_err err = { 0 };

    sem_init(&begun, 0, 0);
    sem_init(&may_end, 0, 0);
    cr_assert_eq(cpu_device_open(&d, &options, &err), TP_OK, "%s", err.msg);
    real = d->ops;
    *ops = *d->ops;
    ops->alloc_pinned = alloc_late;
    d->ops = ops;
    d->pins_in_threads = waits = in_threads;
    return d;
}

/* The allocation has begun, and cannot end before this thread lets it. */
static void check(bool in_threads, bool with_failure)
{
    struct device_ops ops;
    struct device *d = open_device(&ops, in_threads);
    struct snapshot_memory m = { .device = d, .n_bytes = 1000 };
    struct tp_err err = { 0 };

    fails = with_failure;
    snapshot_memory_begin(&m);
    if (in_threads) {
        sem_wait(&begun);
        sem_post(&may_end);
    }
    cr_assert_eq(snapshot_memory_finish(&m, &err), with_failure ? TP_E_NOMEM : TP_OK);
    if (with_failure)
        cr_assert_str_eq(err.msg, "out of pinned host memory: 1000 bytes");
    else
        memset(m.pinned, 1, 1000);
    snapshot_memory_close(&m);
    device_close(d);
}

Test(trainer_snapshot_memory, it_is_allocated_beside_the_caller, .timeout = 60)
{
    check(true, false);
    check(false, false);
}

Test(trainer_snapshot_memory, a_failure_is_returned_with_the_memory, .timeout = 60)
{
    check(true, true);
    check(false, true);
}

/* As after a failure of the restore, while a thread allocates, and where nothing has begun. */
Test(trainer_snapshot_memory, it_can_be_closed_at_any_time, .timeout = 60)
{
    struct device_ops ops;
    struct device *d = open_device(&ops, true);
    struct snapshot_memory m = { .device = d, .n_bytes = 1000 }, none = { .device = d };

    fails = false;
    snapshot_memory_begin(&m);
    sem_post(&may_end);
    snapshot_memory_close(&m);
    snapshot_memory_close(&none);
    device_close(d);
}
