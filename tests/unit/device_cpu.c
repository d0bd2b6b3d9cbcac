/*
 * tests/unit/device_cpu.c - the CPU device: the order of queues and events, memory, failures.
 * covers: device/device device/failure device/cpu/cpu_queue device/cpu/pages device/host_copy
 */
#include "device/cpu/cpu.h"

#include <stdatomic.h>
#include <time.h>

#include "tests/unit/device_cases.h"

static struct device *open_device(bool no_comm_thread)
{
    const struct cpu_options options = { .threads = 2, .no_comm_thread = no_comm_thread };
    struct device *d;
    struct tp_err err = { 0 };

    cr_assert_eq(cpu_device_open(&d, &options, &err), TP_OK, "%s", err.msg);
    return d;
}

static void submit(struct device_queue *q, device_fn fn, const void *args, int args_bytes)
{
    device_submit(q, &(struct device_operation){ fn, args, args_bytes, 0 });
}

static tp_status add_one(struct device_queue *q, const void *args, struct tp_err *err)
{
    atomic_int *const *n = args;

    (void)q;
    (void)err;
    atomic_fetch_add(*n, 1);
    return TP_OK;
}

/* Waits until *gate is set. */
static tp_status pass_gate(struct device_queue *q, const void *args, struct tp_err *err)
{
    const struct timespec nap = { .tv_nsec = 1000000 };
    atomic_int *const *gate = args;

    (void)q;
    (void)err;
    while (!atomic_load(*gate))
        nanosleep(&nap, NULL);
    return TP_OK;
}

static tp_status fails(struct device_queue *q, const void *args, struct tp_err *err)
{
    (void)q;
    return tp_fail(err, TP_E_INTERNAL, "%s", (const char *)args);
}

Test(device_cpu, a_compute_queue_runs_at_once)
{
    struct device *d = open_device(false);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    struct device_event *e = open_event(d);
    atomic_int n = 0, *at = &n;

    submit(q, add_one, &at, sizeof at);
    cr_assert_eq(n, 1);
    device_record(q, e);
    cr_assert(device_event_done(e));
    device_event_close(e);
    device_queue_close(q);
    device_close(d);
}

Test(device_cpu, a_comm_queue_runs_by_itself_and_an_event_waits_for_it)
{
    struct device *d = open_device(false);
    struct device_queue *compute = open_queue(d, DEVICE_QUEUE_COMPUTE);
    struct device_queue *comm = open_queue(d, DEVICE_QUEUE_COMM);
    struct device_event *e = open_event(d);
    atomic_int gate = 0, n = 0, *at_gate = &gate, *at = &n;
    struct tp_err err = { 0 };

    submit(comm, pass_gate, &at_gate, sizeof at_gate);
    submit(comm, add_one, &at, sizeof at);
    device_record(comm, e);
    submit(comm, pass_gate, &at_gate, sizeof at_gate); /* after the event */
    cr_assert(!device_event_done(e));
    cr_assert_eq(n, 0);
    gate = 1;
    device_wait(compute, e);
    cr_assert_eq(n, 1);
    cr_assert_eq(device_event_sync(e, &err), TP_OK);
    cr_assert(device_times(d).worked > 0);
    device_event_close(e);
    device_queue_close(comm);
    device_queue_close(compute);
    device_close(d);
}

/* An operation that checks that its number is the next. */
struct in_order {
    atomic_int *next;
    int number;
};

static tp_status check_order(struct device_queue *q, const void *args, struct tp_err *err)
{
    const struct in_order *o = args;
    int expected = o->number;

    (void)q;
    if (!atomic_compare_exchange_strong(o->next, &expected, o->number + 1))
        return tp_fail(err, TP_E_INTERNAL, "number %d runs as number %d", o->number, expected);
    return TP_OK;
}

/* More than the queue's ring holds; arguments are copied. */
Test(device_cpu, many_operations_run_in_the_order_of_queuing)
{
    struct device *d = open_device(false);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMM);
    struct device_event *e = open_event(d);
    atomic_int next = 0;
    struct tp_err err = { 0 };

    for (int i = 0; i < 1000; i++) {
        struct in_order o = { &next, i };

        submit(q, check_order, &o, sizeof o);
        o.number = -1;
    }
    device_record(q, e);
    cr_assert_eq(device_event_sync(e, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(next, 1000);
    device_event_close(e);
    device_queue_close(q);
    device_close(d);
}

Test(device_cpu, a_queue_with_a_thread_waits_for_another)
{
    struct device *d = open_device(false);
    struct device_queue *a = open_queue(d, DEVICE_QUEUE_COMM),
                        *b = open_queue(d, DEVICE_QUEUE_COMM);
    struct device_event *e = open_event(d), *end = open_event(d);
    atomic_int gate = 0, n = 0, next = 0, *at_gate = &gate, *at = &n;
    struct in_order first = { &next, 0 }, second = { &next, 1 };
    struct tp_err err = { 0 };

    submit(a, pass_gate, &at_gate, sizeof at_gate);
    submit(a, check_order, &first, sizeof first);
    device_record(a, e);
    device_wait(b, e);
    submit(b, check_order, &second, sizeof second);
    submit(b, add_one, &at, sizeof at);
    device_record(b, end);
    cr_assert_eq(n, 0);
    gate = 1;
    cr_assert_eq(device_event_sync(end, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(n, 1);
    device_event_close(e);
    device_event_close(end);
    device_queue_close(a);
    device_queue_close(b);
    device_close(d);
}

Test(device_cpu, without_threads_a_comm_queue_runs_at_once)
{
    struct device *d = open_device(true);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMM);
    atomic_int n = 0, *at = &n;

    submit(q, add_one, &at, sizeof at);
    cr_assert_eq(n, 1);
    device_queue_close(q);
    device_close(d);
}

static void check_failure(enum device_queue_kind kind)
{
    struct device *d = open_device(false);
    struct device_queue *q = open_queue(d, kind);
    struct device_event *e = open_event(d);
    atomic_int n = 0, *at = &n;
    struct tp_err err = { 0 };

    submit(q, fails, "the first", 10);
    submit(q, fails, "the second", 11);
    submit(q, add_one, &at, sizeof at);
    device_record(q, e);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(device_event_sync(e, &err), TP_E_INTERNAL);
        cr_assert_str_eq(err.msg, "the first");
    }
    cr_assert_eq(n, 0, "work after a failure is dropped");
    device_event_close(e);
    device_queue_close(q);
    device_close(d);
}

Test(device_cpu, the_first_failure_is_kept)
{
    check_failure(DEVICE_QUEUE_COMPUTE);
    check_failure(DEVICE_QUEUE_COMM);
}

Test(device_cpu, a_failure_from_outside_is_kept)
{
    case_a_failure_from_outside_is_kept(open_device(false));
}

static int watched[2]; /* number of ends [0] and starts [1] of waits */

/* Opens the gate that the wait is for. */
static void watch(void *ctx, bool waits)
{
    watched[waits]++;
    atomic_store((atomic_int *)ctx, 1);
}

Test(device_cpu, the_watch_function_is_called_only_for_waits, .timeout = 60)
{
    struct device *d = open_device(false);
    struct device_queue *compute = open_queue(d, DEVICE_QUEUE_COMPUTE);
    struct device_queue *comm = open_queue(d, DEVICE_QUEUE_COMM);
    struct device_event *e = open_event(d);
    atomic_int gate = 0, *at = &gate;
    struct tp_err err = { 0 };

    device_watch(d, watch, &gate);
    device_record(compute, e);
    cr_assert_eq(device_event_sync(e, &err), TP_OK);
    cr_assert(watched[0] == 0 && watched[1] == 0 && device_times(d).waited == 0);
    submit(comm, pass_gate, &at, sizeof at);
    device_record(comm, e);
    cr_assert_eq(device_event_sync(e, &err), TP_OK);
    cr_assert(watched[0] == 1 && watched[1] == 1);
    cr_assert(device_times(d).waited > 0);
    device_event_close(e);
    device_queue_close(comm);
    device_queue_close(compute);
    device_close(d);
}

Test(device_cpu, an_event_that_was_never_recorded_is_passed)
{
    case_an_event_that_was_never_recorded_is_passed(open_device(false));
}

Test(device_cpu, memory_is_zeroed_copied_and_filled)
{
    case_memory_is_zeroed_copied_and_filled(open_device(false));
}

Test(device_cpu, rows_are_copied)
{
    case_copies_of_rows(open_device(false));
}

Test(device_cpu, events_order_queues)
{
    for (int i = 0; i < 20; i++)
        case_events_order_queues(open_device(i & 1));
}

Test(device_cpu, scratch_is_kept_and_grows)
{
    struct device *d = open_device(false);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    void *first = device_scratch(q, 1000);

    cr_assert_eq(device_scratch(q, 10), first);
    cr_assert_not_null(device_scratch(q, 1 << 20));
    device_queue_close(q);
    device_close(d);
}

Test(device_cpu, too_much_memory_is_refused_with_a_sentence)
{
    case_too_much_memory_is_refused_with_a_sentence(open_device(false));
}
