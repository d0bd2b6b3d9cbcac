/* device/cpu/cpu.c - see device/cpu/cpu.h. */
#include "device/cpu/cpu.h"

#include <stdlib.h>

#include "core/clock.h"
#include "device/cpu/cpu_queue.h"
#include "device/cpu/pages.h"
#include "device/failure.h"
#include "device/host_copy.h"

struct cpu_device {
    struct device device;
    struct cpu_options options;
    struct pages *pages;
    struct device_failure failure;
    void (*watch)(void *ctx, bool waits);
    void *watch_ctx;
    struct device_times times; /* waited, and the work of queues that are closed */
    struct cpu_queue *queues;  /* those with threads, linked by next */
    bool is_stuck;             /* a thread is in an operation that may never end */
};

struct cpu_event {
    struct device_event event;
    struct cpu_queue *queue; /* NULL: passed */
    uint64_t number;         /* how many of the queue's operations must be finished */
};

static struct cpu_device *device_of(const struct device *d)
{
    return (struct cpu_device *)(uintptr_t)d; /* its first member */
}

static struct cpu_queue *queue_of(const struct device_queue *q)
{
    return (struct cpu_queue *)(uintptr_t)q;
}

static struct cpu_event *event_of(const struct device_event *e)
{
    return (struct cpu_event *)(uintptr_t)e;
}

/* ---- failure ---- */

static void cpu_fail(struct device *d, const struct tp_err *err)
{
    device_failure_keep(&device_of(d)->failure, err);
}

/* ---- memory ---- */

static tp_status cpu_alloc(struct device *d, void **out, int64_t n_bytes, struct tp_err *err)
{
    return pages_map(&device_of(d)->pages, out, n_bytes, err);
}

static void cpu_free(struct device *d, void *p)
{
    pages_unmap(&device_of(d)->pages, p);
}

/* For this device all memory is the same. */
static tp_status cpu_adopt(struct device *d, void *p, int64_t n_bytes, struct tp_err *err)
{
    (void)d;
    (void)p;
    (void)n_bytes;
    (void)err;
    return TP_OK;
}

/* ---- queues ---- */

/* Run an operation in the calling thread, unless the device has failed. */
static void run(struct device_queue *q, device_fn fn, const void *args)
{
    struct tp_err err;

    if (device_failure_has(&device_of(q->device)->failure))
        return;
    err.status = TP_OK;
    err.msg[0] = '\0';
    if (fn(q, args, &err) != TP_OK)
        cpu_fail(q->device, &err);
}

static tp_status cpu_queue_new(struct device *d, struct device_queue **out,
                               enum device_queue_kind kind, struct tp_err *err)
{
    struct cpu_device *c = device_of(d);
    bool has_thread = kind == DEVICE_QUEUE_COMM && !c->options.no_comm_thread;
    struct cpu_queue *q = cpu_queue_open(d, kind, has_thread ? run : NULL);

    if (!q)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a queue of the CPU device");
    if (has_thread) {
        q->next = c->queues;
        c->queues = q;
    }
    *out = &q->queue;
    return TP_OK;
}

static void cpu_queue_end(struct device_queue *queue)
{
    struct cpu_device *c = device_of(queue->device);
    struct cpu_queue *q = queue_of(queue), **link = &c->queues;

    while (*link && *link != q)
        link = &(*link)->next;
    if (*link)
        *link = q->next;
    c->times.worked += cpu_queue_worked(q);
    if (!cpu_queue_close(q, device_failure_has(&c->failure)))
        c->is_stuck = true;
}

static void cpu_submit(struct device_queue *q, const struct device_operation *o)
{
    struct tp_err err = { 0 };

    if (!q->has_thread)
        run(q, o->fn, o->args);
    else if (cpu_queue_submit(queue_of(q), o->fn, o->args, o->args_bytes, &err))
        cpu_fail(q->device, &err);
}

static void *cpu_scratch(struct device_queue *q, int64_t n_bytes)
{
    return cpu_queue_scratch(queue_of(q), n_bytes);
}

/* ---- events ---- */

static tp_status cpu_event_open(struct device *d, struct device_event **out, struct tp_err *err)
{
    struct cpu_event *e = calloc(1, sizeof *e);

    if (!e)
        return tp_fail(err, TP_E_NOMEM, "out of memory for an event of the CPU device");
    e->event.device = d;
    *out = &e->event;
    return TP_OK;
}

static void cpu_event_close(struct device_event *e)
{
    free(event_of(e));
}

static void cpu_record(struct device_queue *q, struct device_event *event)
{
    struct cpu_event *e = event_of(event);

    e->queue = q->has_thread ? queue_of(q) : NULL;
    e->number = q->has_thread ? cpu_queue_number(e->queue) : 0;
}

static bool cpu_done(const struct device_event *event)
{
    const struct cpu_event *e = event_of(event);

    return !e->queue || cpu_queue_has_finished(e->queue, e->number);
}

/* Wait in the thread of the caller. */
static void wait_here(struct cpu_device *c, const struct cpu_event *e)
{
    double start;

    if (cpu_done(&e->event))
        return;
    start = clock_seconds();
    if (c->watch)
        c->watch(c->watch_ctx, true);
    cpu_queue_finish(e->queue, e->number);
    if (c->watch)
        c->watch(c->watch_ctx, false);
    c->times.waited += clock_seconds() - start;
}

/* Wait in the thread of another queue. args is a copy of the event. */
static tp_status wait_there(struct device_queue *q, const void *args, struct tp_err *err)
{
    const struct cpu_event *e = args;

    (void)q;
    (void)err;
    cpu_queue_finish(e->queue, e->number);
    return TP_OK;
}

static void cpu_wait(struct device_queue *q, struct device_event *event)
{
    struct cpu_event *e = event_of(event);

    if (!e->queue || e->queue == queue_of(q))
        return;
    if (q->has_thread)
        cpu_submit(q, &(struct device_operation){ wait_there, e, sizeof *e, 0 });
    else
        wait_here(device_of(q->device), e);
}

static tp_status cpu_sync(struct device_event *e, struct tp_err *err)
{
    struct cpu_device *c = device_of(e->device);

    wait_here(c, event_of(e));
    return device_failure_get(&c->failure, err);
}

/* ---- the device ---- */

static void cpu_watch(struct device *d, void (*fn)(void *ctx, bool waits), void *ctx)
{
    struct cpu_device *c = device_of(d);

    c->watch = fn;
    c->watch_ctx = ctx;
}

static void cpu_times(const struct device *d, struct device_times *out)
{
    const struct cpu_device *c = device_of(d);

    *out = c->times;
    for (struct cpu_queue *q = c->queues; q; q = q->next)
        out->worked += cpu_queue_worked(q);
}

static void cpu_close(struct device *d)
{
    struct cpu_device *c = device_of(d);

    if (c->is_stuck) /* a thread may still use it */
        return;
    pages_unmap_all(&c->pages);
    device_failure_close(&c->failure);
    free(c);
}

static const struct device_ops CPU_OPS = {
    .alloc = cpu_alloc,
    .alloc_pinned = cpu_alloc,
    .free = cpu_free,
    .adopt = cpu_adopt,
    .close = cpu_close,
    .queue_open = cpu_queue_new,
    .queue_close = cpu_queue_end,
    .submit = cpu_submit,
    .scratch = cpu_scratch,
    .copy = host_copy,
    .fill = host_copy_fill,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .record = cpu_record,
    .wait = cpu_wait,
    .sync = cpu_sync,
    .done = cpu_done,
    .fail = cpu_fail,
    .watch = cpu_watch,
    .times = cpu_times,
};

tp_status cpu_device_open(struct device **out, const struct cpu_options *o, struct tp_err *err)
{
    struct cpu_device *c = calloc(1, sizeof *c);

    if (!c)
        return tp_fail(err, TP_E_NOMEM, "out of memory for the CPU device");
    c->device = (struct device){ .ops = &CPU_OPS,
                                 .threads = o->threads < 1 ? 1 : o->threads,
                                 .host_memory = true };
    c->options = *o;
    device_failure_open(&c->failure);
    *out = &c->device;
    return TP_OK;
}
