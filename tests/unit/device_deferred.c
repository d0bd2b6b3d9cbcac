/*
 * tests/unit/device_deferred.c - the deferred device of the tests (tests/deferred/): it runs work
 * as late as possible, guarantees only the order that queues and events require, and so finds code
 * that relies on more.
 */
#include "tests/deferred/deferred.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/unit/random.h"

enum { SEEDS = 16 };

static struct device *open_device(uint64_t seed)
{
    const struct deferred_options options = { .threads = 1, .seed = seed };
    struct device *d;
    struct tp_err err = { 0 };

    cr_assert_eq(deferred_device_open(&d, &options, &err), TP_OK, "%s", err.msg);
    return d;
}

static struct device_queue *open_queue(struct device *d, enum device_queue_kind kind)
{
    struct device_queue *q;
    struct tp_err err = { 0 };

    cr_assert_eq(device_queue_open(d, &q, kind, &err), TP_OK, "%s", err.msg);
    return q;
}

static struct device_event *open_event(struct device *d)
{
    struct device_event *e;
    struct tp_err err = { 0 };

    cr_assert_eq(device_event_open(d, &e, &err), TP_OK, "%s", err.msg);
    return e;
}

static void *alloc(struct device *d, int64_t n_bytes)
{
    void *p;
    struct tp_err err = { 0 };

    cr_assert_eq(device_alloc(d, &p, n_bytes, &err), TP_OK, "%s", err.msg);
    return p;
}

static void *alloc_pinned(struct device *d, int64_t n_bytes)
{
    void *p;
    struct tp_err err = { 0 };

    cr_assert_eq(device_alloc_pinned(d, &p, n_bytes, &err), TP_OK, "%s", err.msg);
    return p;
}

/* Wait until the queue has finished its work. Returns the device's failure. */
static struct tp_err finish(struct device_queue *q)
{
    struct device_event *e = open_event(q->device);
    struct tp_err err = { 0 };

    device_record(q, e);
    device_event_sync(e, &err);
    device_event_close(e);
    return err;
}

/* An operation that appends its number to a list. */
struct note {
    int *list; /* list[0] is how many there are */
    int number;
};

static tp_status write_note(struct device_queue *q, const void *args, struct tp_err *err)
{
    const struct note *n = args;

    (void)q;
    (void)err;
    n->list[++n->list[0]] = n->number;
    return TP_OK;
}

static void submit_note(struct device_queue *q, int *list, int number, int flags)
{
    struct note n = { list, number };

    device_submit(q, &(struct device_operation){ write_note, &n, sizeof n, flags });
    n.number = -1; /* the queue has a copy */
}

Test(device_deferred, nothing_runs_before_the_host_waits)
{
    struct device *d = open_device(1);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    struct device_event *e = open_event(d);
    int list[4] = { 0 };

    cr_assert(device_event_done(e), "an event that was never recorded is done");
    submit_note(q, list, 7, 0);
    submit_note(q, list, 8, 0);
    device_record(q, e);
    cr_assert(!device_event_done(e) && list[0] == 0);
    cr_assert_eq(finish(q).status, TP_OK);
    cr_assert(device_event_done(e) && list[0] == 2 && list[1] == 7 && list[2] == 8);
    submit_note(q, list, 9, 0);
    device_event_close(e);
    device_queue_close(q);
    cr_assert_eq(list[3], 9, "a queue finishes its work when it is closed");
    device_close(d);
}

/* ---- memory ---- */

static volatile char seen;

/* A sanitizer's handler would end the process in another way. */
static void without_handlers(void)
{
    signal(SIGSEGV, SIG_DFL);
}

Test(device_deferred, the_host_cannot_read_device_memory, .init = without_handlers,
     .signal = SIGSEGV)
{
    const char *p = alloc(open_device(1), 10);

    seen = *p;
}

Test(device_deferred, the_host_cannot_write_device_memory_after_a_wait, .init = without_handlers,
     .signal = SIGSEGV)
{
    struct device *d = open_device(1);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    char *p = alloc(d, 10);

    device_fill(q, p, 1, 10);
    if (finish(q).status == TP_OK)
        *p = 1;
}

Test(device_deferred, the_host_cannot_read_adopted_memory, .init = without_handlers,
     .signal = SIGSEGV)
{
    char *p = aligned_alloc(4096, 4096);
    struct tp_err err;

    if (device_adopt(open_device(1), p, 4096, &err) == TP_OK)
        seen = *p;
}

Test(device_deferred, an_operation_on_memory_that_was_freed_ends_the_process,
     .init = without_handlers, .signal = SIGSEGV)
{
    struct device *d = open_device(1);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    char *p = alloc(d, 10);

    device_fill(q, p, 1, 10);
    device_free(d, p);
    finish(q);
}

Test(device_deferred, the_host_reads_results_in_pinned_memory)
{
    struct device *d = open_device(1);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    char *device = alloc(d, 10), *pinned = alloc_pinned(d, 10),
         *adopted = aligned_alloc(4096, 4096);
    struct tp_err err = { 0 };

    memcpy(pinned, "abcdefghi", 10);
    cr_assert_eq(device_adopt(d, adopted, 4096, &err), TP_OK);
    device_copy(q, device, pinned, 10);
    device_copy_2d(q, &(struct device_copy){ device, pinned + 1, 3, 1, 2, 1 }); /* b.c.d */
    device_copy(q, adopted, device, 10);
    device_fill(q, device, 'x', 10);
    device_copy(q, pinned, device, 5);
    cr_assert_str_eq(pinned, "abcdefghi", "nothing has run yet");
    cr_assert_eq(finish(q).status, TP_OK);
    cr_assert_str_eq(pinned, "xxxxxfghi");
    device_free(d, device);
    device_queue_close(q);
    device_close(d);
    cr_assert_eq(memcmp(adopted, "bbcddfghi", 10), 0,
                 "the owner can read it after the device is closed");
    free(adopted);
}

/* ---- order ---- */

/* Operation `number` of a random program: x[to] = 31 x[to] + x[from] + number. */
struct mix {
    uint64_t *x;
    int to, from, number;
};

static tp_status mix(struct device_queue *q, const void *args, struct tp_err *err)
{
    const struct mix *m = args;

    (void)q;
    (void)err;
    m->x[m->to] = 31 * m->x[m->to] + m->x[m->from] + (uint64_t)m->number;
    return TP_OK;
}

enum { QUEUES = 3, CELLS = 6, STEPS = 60 };

/* A random program on several queues. Only queue c % QUEUES writes cell c. An event orders a write
 * of another queue before the read, and the read before the next write. The wait number `without`
 * is left out. Returns the number of waits; *right: whether the result is right. */
static int run_program(struct device *d, uint64_t program, int without, bool *right)
{
    struct device_queue *q[QUEUES];
    struct device_event *e = open_event(d);
    uint64_t *x = alloc(d, CELLS * (int64_t)sizeof *x), expected[CELLS] = { 0 };
    uint64_t *read = alloc_pinned(d, sizeof expected);
    struct rng rng = { program };
    int waits = 0;

    for (int i = 0; i < QUEUES; i++)
        q[i] = open_queue(d, (enum device_queue_kind)i);
    for (int i = 0; i < STEPS; i++) {
        int to = (int)rng_int(&rng, 0, CELLS - 1), from = (int)rng_int(&rng, 0, CELLS - 1);
        int own = to % QUEUES, other = from % QUEUES;
        const struct mix m = { x, to, from, i };
        struct mix now = m;

        now.x = expected;
        mix(NULL, &now, NULL);
        device_record(q[other], e);
        if (own != other && waits++ != without)
            device_wait(q[own], e);
        device_submit(q[own], &(struct device_operation){ mix, &m, sizeof m, 0 });
        device_record(q[own], e);
        if (own != other && waits++ != without)
            device_wait(q[other], e);
    }
    for (int i = 1; i < QUEUES; i++) {
        device_record(q[i], e);
        device_wait(q[0], e);
    }
    device_copy(q[0], read, x, sizeof expected);
    cr_assert_eq(finish(q[0]).status, TP_OK);
    *right = memcmp(read, expected, sizeof expected) == 0;
    device_event_close(e);
    for (int i = 0; i < QUEUES; i++)
        device_queue_close(q[i]);
    device_close(d);
    return waits;
}

Test(device_deferred, a_program_with_all_its_events_is_right_in_every_order)
{
    bool right;

    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (uint64_t program = 0; program < 20; program++) {
            run_program(open_device(seed), program, -1, &right);
            cr_assert(right, "seed %d program %d", (int)seed, (int)program);
        }
}

/* Most waits are implied by others, so leaving them out has no effect. 89 of the 424 have one. */
Test(device_deferred, a_program_without_one_of_its_waits_is_wrong_in_some_order)
{
    int n_found = 0, n = 0;

    for (uint64_t program = 0; program < 5; program++) {
        bool right;
        int waits = run_program(open_device(0), program, -1, &right);

        for (int without = 0; without < waits; without++, n++)
            for (uint64_t seed = 0; seed < SEEDS; seed++) {
                run_program(open_device(seed), program, without, &right);
                if (!right) {
                    n_found++;
                    break;
                }
            }
    }
    cr_assert(n_found > n / 5, "%d of %d were found", n_found, n);
}

/* The two faults: a reader that does not wait for the writer, and the reverse. */
Test(device_deferred, a_missing_wait_is_found_by_few_seeds)
{
    for (int reader_first = 0; reader_first < 2; reader_first++) {
        int n_found = 0;

        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct device *d = open_device(seed);
            struct device_queue *a = open_queue(d, DEVICE_QUEUE_COMPUTE);
            struct device_queue *b = open_queue(d, DEVICE_QUEUE_COMM);
            int list[3] = { 0 };

            submit_note(reader_first ? b : a, list, 1, 0);
            submit_note(reader_first ? a : b, list, 2, 0);
            finish(a);
            finish(b);
            n_found += list[1] == 2;
            device_queue_close(a);
            device_queue_close(b);
            device_close(d);
        }
        cr_assert(n_found >= SEEDS / 5, "%d of %d", n_found, SEEDS);
    }
}

Test(device_deferred, a_seed_always_gives_the_same_order)
{
    int list[2][21] = { 0 };

    for (int run = 0; run < 2; run++) {
        struct device *d = open_device(5);
        struct device_queue *a = open_queue(d, DEVICE_QUEUE_COMPUTE);
        struct device_queue *b = open_queue(d, DEVICE_QUEUE_COPY);

        for (int i = 0; i < 20; i++)
            submit_note(i % 2 ? a : b, list[run], i, 0);
        finish(a);
        device_queue_close(a);
        device_queue_close(b);
        device_close(d);
    }
    cr_assert_eq(list[0][0], 20);
    cr_assert_arr_eq(list[0], list[1], sizeof list[0]);
}

Test(device_deferred, collectives_run_in_the_order_of_queuing_over_all_queues)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct device *d = open_device(seed);
        struct device_queue *q[3];
        struct device_event *e = open_event(d);
        int list[31] = { 0 }, other[31] = { 0 };

        for (int i = 0; i < 3; i++)
            q[i] = open_queue(d, DEVICE_QUEUE_COMM);
        device_record(q[0], e);
        for (int i = 0; i < 30; i++) {
            submit_note(q[i * 7 % 3], other, i, 0);
            submit_note(q[i * 7 % 3], list, i, DEVICE_COLLECTIVE);
        }
        finish(q[0]);
        cr_assert_eq(list[0], 30, "all have run, because other ranks wait for them");
        for (int i = 0; i < 30; i++)
            cr_assert_eq(list[i + 1], i);
        device_event_close(e);
        for (int i = 0; i < 3; i++)
            device_queue_close(q[i]);
        device_close(d);
    }
}

Test(device_deferred, work_that_a_wait_does_not_need_may_run_later)
{
    int n_left = 0;

    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct device *d = open_device(seed);
        struct device_queue *a = open_queue(d, DEVICE_QUEUE_COMPUTE);
        struct device_queue *b = open_queue(d, DEVICE_QUEUE_COPY);
        int list[3] = { 0 };

        submit_note(b, list, 1, 0);
        submit_note(a, list, 2, 0);
        finish(a);
        n_left += list[0] == 1;
        finish(b);
        cr_assert_eq(list[0], 2);
        device_queue_close(a);
        device_queue_close(b);
        device_close(d);
    }
    cr_assert(n_left > 0 && n_left < SEEDS, "%d of %d", n_left, SEEDS);
}

/* ---- failures ---- */

static tp_status fails(struct device_queue *q, const void *args, struct tp_err *err)
{
    (void)q;
    return tp_fail(err, TP_E_INTERNAL, "%s", (const char *)args);
}

Test(device_deferred, the_first_failure_is_kept_and_later_work_is_dropped)
{
    struct device *d = open_device(1);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    int list[2] = { 0 };

    device_submit(q, &(struct device_operation){ fails, "the first", 10, 0 });
    device_submit(q, &(struct device_operation){ fails, "the second", 11, 0 });
    submit_note(q, list, 1, 0);
    for (int i = 0; i < 2; i++) {
        struct tp_err err = finish(q);

        cr_assert_eq(err.status, TP_E_INTERNAL);
        cr_assert_str_eq(err.msg, "the first");
    }
    cr_assert_eq(list[0], 0);
    device_queue_close(q);
    device_close(d);
}

/* ---- kernels ---- */

Test(device_deferred, kernels_of_the_cpu_run_on_it)
{
    enum { N = 1000 };
    struct device *d = open_device(1);
    struct device_queue *q = open_queue(d, DEVICE_QUEUE_COMPUTE);
    int64_t n_bytes = N * (int64_t)sizeof(float);
    float *a = alloc(d, n_bytes), *b = alloc(d, n_bytes), *host = alloc_pinned(d, n_bytes);

    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    device_copy(q, a, host, n_bytes);
    device_copy(q, b, host, n_bytes);
    for (int i = 0; i < 3; i++)
        kernels_cpu.sum_add(q, &(struct sum_add){ a, b, 1, N, N, N });
    device_copy(q, host, a, n_bytes);
    cr_assert_eq(finish(q).status, TP_OK);
    for (int i = 0; i < N; i++)
        cr_assert_eq(host[i], 4 * (float)i);
    device_queue_close(q);
    device_close(d);
}
