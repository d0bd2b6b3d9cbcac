/* device/device.c - see device/device.h. */
#include "device/device.h"

#include <stddef.h>

tp_status device_alloc(struct device *d, void **out, int64_t n_bytes, struct tp_err *err)
{
    return d->ops->alloc(d, out, n_bytes, err);
}

tp_status device_alloc_pinned(struct device *d, void **out, int64_t n_bytes, struct tp_err *err)
{
    return d->ops->alloc_pinned(d, out, n_bytes, err);
}

void device_free(struct device *d, void *p)
{
    if (p)
        d->ops->free(d, p);
}

tp_status device_adopt(struct device *d, void *p, int64_t n_bytes, struct tp_err *err)
{
    return d->ops->adopt(d, p, n_bytes, err);
}

void device_close(struct device *d)
{
    if (d)
        d->ops->close(d);
}

tp_status device_queue_open(struct device *d, struct device_queue **out,
                            enum device_queue_kind kind, struct tp_err *err)
{
    return d->ops->queue_open(d, out, kind, err);
}

void device_queue_close(struct device_queue *q)
{
    if (q)
        q->device->ops->queue_close(q);
}

void device_submit(struct device_queue *q, const struct device_operation *o)
{
    q->device->ops->submit(q, o);
}

void *device_scratch(struct device_queue *q, int64_t n_bytes)
{
    return q->device->ops->scratch(q, n_bytes);
}

void device_copy(struct device_queue *q, void *dst, const void *src, int64_t n_bytes)
{
    const struct device_copy c = { dst, src, 1, n_bytes, n_bytes, n_bytes };

    device_copy_2d(q, &c);
}

void device_copy_2d(struct device_queue *q, const struct device_copy *c)
{
    if (c->rows > 0 && c->row_bytes > 0 && c->dst != c->src)
        q->device->ops->copy(q, c);
}

void device_fill(struct device_queue *q, void *dst, int byte, int64_t n_bytes)
{
    if (n_bytes > 0)
        q->device->ops->fill(q, dst, byte, n_bytes);
}

tp_status device_event_open(struct device *d, struct device_event **out, struct tp_err *err)
{
    return d->ops->event_open(d, out, err);
}

void device_event_close(struct device_event *e)
{
    if (e)
        e->device->ops->event_close(e);
}

void device_record(struct device_queue *q, struct device_event *e)
{
    q->device->ops->record(q, e);
}

void device_wait(struct device_queue *q, struct device_event *e)
{
    q->device->ops->wait(q, e);
}

tp_status device_event_sync(struct device_event *e, struct tp_err *err)
{
    return e->device->ops->sync(e, err);
}

bool device_event_done(const struct device_event *e)
{
    return e->device->ops->done(e);
}

bool device_has_graphs(const struct device *d)
{
    return d->ops->graph_begin != NULL;
}

void device_graph_begin(struct device_queue *q)
{
    q->device->ops->graph_begin(q);
}

struct device_graph *device_graph_end(struct device_queue *q)
{
    return q->device->ops->graph_end(q);
}

void device_graph_launch(struct device_queue *q, struct device_graph *g)
{
    if (g)
        q->device->ops->graph_launch(q, g);
}

void device_graph_close(struct device *d, struct device_graph *g)
{
    if (g)
        d->ops->graph_close(d, g);
}

void device_fail(struct device *d, const struct tp_err *err)
{
    d->ops->fail(d, err);
}

void device_watch(struct device *d, void (*fn)(void *ctx, bool waits), void *ctx)
{
    d->ops->watch(d, fn, ctx);
}

struct device_times device_times(const struct device *d)
{
    struct device_times t = { 0 };

    d->ops->times(d, &t);
    return t;
}
