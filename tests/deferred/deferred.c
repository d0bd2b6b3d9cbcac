/* tests/deferred/deferred.c - see tests/deferred/deferred.h. */
#include "tests/deferred/deferred.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/host_copy.h"
#include "tests/deferred/deferred_queue.h"

enum { PAGE = 4096 };

struct memory {
    struct memory *next;
    void *at;
    size_t n_bytes;
    bool is_pinned, is_adopted;
};

struct deferred_device {
    struct device device;
    struct deferred_queues queues;
    struct memory *memory;
    struct tp_err err; /* the first failure */
    bool is_running;   /* operations run, and device memory can be accessed */
};

struct deferred_event {
    struct device_event event;
    struct deferred_point point;
};

static struct deferred_device *device_of(const struct device *d)
{
    return (struct deferred_device *)(uintptr_t)d; /* its first member */
}

static struct deferred_queue *queue_of(const struct device_queue *q)
{
    return (struct deferred_queue *)(uintptr_t)q;
}

static struct deferred_event *event_of(const struct device_event *e)
{
    return (struct deferred_event *)(uintptr_t)e;
}

static void deferred_fail(struct device *d, const struct tp_err *err)
{
    struct deferred_device *x = device_of(d);

    if (!x->err.status)
        x->err = *err;
}

/* ---- memory ---- */

static void protect(const struct memory *m, bool open)
{
    if (!m->is_pinned)
        mprotect(m->at, m->n_bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static tp_status add_memory(struct deferred_device *x, const struct memory *what,
                            struct tp_err *err)
{
    struct memory *m = malloc(sizeof *m);

    if (!m)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a list of buffers");
    *m = *what;
    m->next = x->memory;
    x->memory = m;
    protect(m, x->is_running);
    return TP_OK;
}

/* Whole pages, because a part of one cannot be protected. */
static size_t in_pages(int64_t n_bytes)
{
    return n_bytes > 0 ? ((size_t)n_bytes + PAGE - 1) / PAGE * PAGE : PAGE;
}

static tp_status map(struct device *d, void **out, int64_t n_bytes, bool is_pinned,
                     struct tp_err *err)
{
    struct memory m = { .n_bytes = in_pages(n_bytes), .is_pinned = is_pinned };
    tp_status st;

    m.at = mmap(NULL, m.n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m.at == MAP_FAILED)
        return tp_fail(err, TP_E_NOMEM, "out of memory: %lld bytes of tensors", (long long)n_bytes);
    if ((st = add_memory(device_of(d), &m, err)))
        munmap(m.at, m.n_bytes);
    else
        *out = m.at;
    return st;
}

static tp_status deferred_alloc(struct device *d, void **out, int64_t n_bytes, struct tp_err *err)
{
    return map(d, out, n_bytes, false, err);
}

static tp_status deferred_alloc_pinned(struct device *d, void **out, int64_t n_bytes,
                                       struct tp_err *err)
{
    return map(d, out, n_bytes, true, err);
}

static tp_status deferred_adopt(struct device *d, void *p, int64_t n_bytes, struct tp_err *err)
{
    const struct memory m = { .at = p, .n_bytes = in_pages(n_bytes), .is_adopted = true };

    return add_memory(device_of(d), &m, err);
}

/* Remove what *link points to. Adopted memory is its owner's, who may access it again. */
static void drop(struct memory **link)
{
    struct memory *m = *link;

    *link = m->next;
    if (m->is_adopted)
        protect(m, true);
    else
        munmap(m->at, m->n_bytes);
    free(m);
}

/* At once: an operation that still uses the memory is a fault of the caller, and ends the
 * process. */
static void deferred_free(struct device *d, void *p)
{
    struct memory **link = &device_of(d)->memory;

    while (*link && (*link)->at != p)
        link = &(*link)->next;
    if (*link)
        drop(link);
}

static void open_memory(struct deferred_device *x, bool open)
{
    x->is_running = open;
    for (const struct memory *m = x->memory; m; m = m->next)
        protect(m, open);
}

/* ---- running ---- */

/* Run items until p is passed and the round may end, or until nothing is left. */
static void run_round(struct deferred_device *x, const struct deferred_point *p)
{
    struct deferred_item *item;
    struct deferred_queue *q;

    if (x->is_running) /* an operation waits: not supported, and not needed */
        return;
    open_memory(x, true);
    deferred_queues_begin_round(&x->queues);
    while (!deferred_queues_may_end(&x->queues, p) &&
           (item = deferred_queues_take(&x->queues, &q))) {
        struct tp_err err = { 0 };

        if (!x->err.status && item->fn(&q->queue, item->args, &err) != TP_OK)
            deferred_fail(&x->device, &err);
        deferred_queues_finished(&x->queues, q, item);
        free(item);
    }
    open_memory(x, false);
}

/* ---- queues ---- */

static tp_status deferred_queue_open(struct device *d, struct device_queue **out,
                                     enum device_queue_kind kind, struct tp_err *err)
{
    struct deferred_queues *s = &device_of(d)->queues;
    struct deferred_queue *q = calloc(1, sizeof *q);

    if (!q)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a queue");
    q->queue = (struct device_queue){ .device = d, .kind = kind };
    q->next = s->queues;
    s->queues = q;
    *out = &q->queue;
    return TP_OK;
}

/* The queue itself stays until the device is closed, because events may still name it. */
static void deferred_queue_close(struct device_queue *queue)
{
    struct deferred_queue *q = queue_of(queue);

    run_round(device_of(queue->device), &(struct deferred_point){ q, q->queued });
}

static void deferred_submit(struct device_queue *q, const struct device_operation *o)
{
    struct tp_err err = { 0 };

    if (deferred_queue_add(&device_of(q->device)->queues, queue_of(q), o, &err))
        deferred_fail(q->device, &err);
}

static void *deferred_scratch(struct device_queue *queue, int64_t n_bytes)
{
    struct deferred_queue *q = queue_of(queue);

    if (n_bytes <= q->scratch_bytes)
        return q->scratch;
    free(q->scratch);
    q->scratch = aligned_alloc(PAGE, in_pages(n_bytes));
    q->scratch_bytes = q->scratch ? n_bytes : 0;
    if (q->scratch)
        memset(q->scratch, 0xff, in_pages(n_bytes)); /* not numbers: nobody relies on zeros */
    return q->scratch;
}

/* ---- events ---- */

static tp_status deferred_event_open(struct device *d, struct device_event **out,
                                     struct tp_err *err)
{
    struct deferred_event *e = calloc(1, sizeof *e);

    if (!e)
        return tp_fail(err, TP_E_NOMEM, "out of memory for an event");
    e->event.device = d;
    *out = &e->event;
    return TP_OK;
}

static void deferred_event_close(struct device_event *e)
{
    free(event_of(e));
}

static void deferred_record(struct device_queue *q, struct device_event *e)
{
    event_of(e)->point = (struct deferred_point){ queue_of(q), queue_of(q)->queued };
}

static void deferred_wait(struct device_queue *q, struct device_event *e)
{
    struct tp_err err = { 0 };

    if (deferred_queue_add_wait(queue_of(q), event_of(e)->point, &err))
        deferred_fail(q->device, &err);
}

static tp_status deferred_sync(struct device_event *event, struct tp_err *err)
{
    struct deferred_device *x = device_of(event->device);

    run_round(x, &event_of(event)->point);
    if (x->err.status)
        *err = x->err;
    return x->err.status;
}

static bool deferred_done(const struct device_event *e)
{
    return deferred_point_is_passed(&event_of(e)->point);
}

/* ---- the device ---- */

/* No queue has a thread, so there is nothing to report. */
static void deferred_watch(struct device *d, void (*fn)(void *ctx, bool waits), void *ctx)
{
    (void)d;
    (void)fn;
    (void)ctx;
}

static void deferred_times(const struct device *d, struct device_times *out)
{
    (void)d;
    *out = (struct device_times){ 0 };
}

static void deferred_close(struct device *d)
{
    struct deferred_device *x = device_of(d);

    while (x->memory)
        drop(&x->memory);
    deferred_queues_free(&x->queues);
    free(x);
}

static const struct device_ops DEFERRED_OPS = {
    .alloc = deferred_alloc,
    .alloc_pinned = deferred_alloc_pinned,
    .free = deferred_free,
    .adopt = deferred_adopt,
    .close = deferred_close,
    .queue_open = deferred_queue_open,
    .queue_close = deferred_queue_close,
    .submit = deferred_submit,
    .scratch = deferred_scratch,
    .copy = host_copy,
    .fill = host_copy_fill,
    .event_open = deferred_event_open,
    .event_close = deferred_event_close,
    .record = deferred_record,
    .wait = deferred_wait,
    .sync = deferred_sync,
    .done = deferred_done,
    .fail = deferred_fail,
    .watch = deferred_watch,
    .times = deferred_times,
};

tp_status deferred_device_open(struct device **out, const struct deferred_options *o,
                               struct tp_err *err)
{
    struct deferred_device *x = calloc(1, sizeof *x);

    if (!x)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a device");
    x->device = (struct device){ .ops = &DEFERRED_OPS, .threads = o->threads < 1 ? 1 : o->threads };
    x->queues.random = o->seed;
    *out = &x->device;
    return TP_OK;
}
