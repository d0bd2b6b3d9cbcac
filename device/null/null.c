/* device/null/null.c - see device/null/null.h. */
#include "device/null/null.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Address space that was reserved. */
struct null_memory {
    struct null_memory *next;
    void *at;
    size_t n_bytes;
};

struct null_device {
    struct device device;
    struct null_memory *memory;
};

static struct null_device *device_of(struct device *d)
{
    return (struct null_device *)d; /* its first member */
}

static tp_status map(struct device *d, void **out, int64_t n_bytes, int access, struct tp_err *err)
{
    struct null_memory *m = malloc(sizeof *m);

    if (!m)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a list of buffers");
    m->n_bytes = n_bytes > 0 ? (size_t)n_bytes : 1;
    m->at = mmap(NULL, m->n_bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->at == MAP_FAILED) {
        free(m);
        return tp_fail(err, TP_E_NOMEM, "no address space for %lld bytes", (long long)n_bytes);
    }
    m->next = device_of(d)->memory;
    device_of(d)->memory = m;
    *out = m->at;
    return TP_OK;
}

static tp_status null_alloc(struct device *d, void **out, int64_t n_bytes, struct tp_err *err)
{
    return map(d, out, n_bytes, PROT_NONE, err);
}

/* Host code uses pinned memory, so this memory is real. */
static tp_status null_alloc_pinned(struct device *d, void **out, int64_t n_bytes,
                                   struct tp_err *err)
{
    return map(d, out, n_bytes, PROT_READ | PROT_WRITE, err);
}

static void null_free(struct device *d, void *p)
{
    struct null_memory **link = &device_of(d)->memory, *m;

    while (*link && (*link)->at != p)
        link = &(*link)->next;
    if (!(m = *link))
        return;
    *link = m->next;
    munmap(m->at, m->n_bytes);
    free(m);
}

static tp_status null_adopt(struct device *d, void *p, int64_t n_bytes, struct tp_err *err)
{
    (void)d;
    (void)p;
    (void)n_bytes;
    (void)err;
    return TP_OK;
}

static void null_close(struct device *d)
{
    struct null_device *n = device_of(d);

    while (n->memory)
        null_free(d, n->memory->at);
    free(n);
}

static tp_status null_queue_open(struct device *d, struct device_queue **out,
                                 enum device_queue_kind kind, struct tp_err *err)
{
    struct device_queue *q = calloc(1, sizeof *q);

    if (!q)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a queue");
    *q = (struct device_queue){ .device = d, .kind = kind };
    *out = q;
    return TP_OK;
}

static void null_queue_close(struct device_queue *q)
{
    free(q);
}

static void null_submit(struct device_queue *q, const struct device_operation *o)
{
    (void)q;
    (void)o;
}

static void *null_scratch(struct device_queue *q, int64_t n_bytes)
{
    (void)q;
    (void)n_bytes;
    return NULL;
}

static void null_copy(struct device_queue *q, const struct device_copy *c)
{
    (void)q;
    (void)c;
}

static void null_fill(struct device_queue *q, void *dst, int byte, int64_t n_bytes)
{
    (void)q;
    (void)dst;
    (void)byte;
    (void)n_bytes;
}

static tp_status null_event_open(struct device *d, struct device_event **out, struct tp_err *err)
{
    struct device_event *e = calloc(1, sizeof *e);

    if (!e)
        return tp_fail(err, TP_E_NOMEM, "out of memory for an event");
    e->device = d;
    *out = e;
    return TP_OK;
}

static void null_event_close(struct device_event *e)
{
    free(e);
}

static void null_event(struct device_queue *q, struct device_event *e)
{
    (void)q;
    (void)e;
}

static tp_status null_sync(struct device_event *e, struct tp_err *err)
{
    (void)e;
    (void)err;
    return TP_OK;
}

static bool null_done(const struct device_event *e)
{
    (void)e;
    return true;
}

static void null_fail(struct device *d, const struct tp_err *err)
{
    (void)d;
    (void)err;
}

static void null_watch(struct device *d, void (*fn)(void *ctx, bool waits), void *ctx)
{
    (void)d;
    (void)fn;
    (void)ctx;
}

static void null_times(const struct device *d, struct device_times *out)
{
    (void)d;
    *out = (struct device_times){ 0 };
}

static const struct device_ops NULL_OPS = {
    .alloc = null_alloc,
    .alloc_pinned = null_alloc_pinned,
    .free = null_free,
    .adopt = null_adopt,
    .close = null_close,
    .queue_open = null_queue_open,
    .queue_close = null_queue_close,
    .submit = null_submit,
    .scratch = null_scratch,
    .copy = null_copy,
    .fill = null_fill,
    .event_open = null_event_open,
    .event_close = null_event_close,
    .record = null_event,
    .wait = null_event,
    .sync = null_sync,
    .done = null_done,
    .fail = null_fail,
    .watch = null_watch,
    .times = null_times,
};

tp_status null_device_open(struct device **out, struct tp_err *err)
{
    struct null_device *n = calloc(1, sizeof *n);

    if (!n)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a device");
    n->device.ops = &NULL_OPS;
    *out = &n->device;
    return TP_OK;
}
