/* reshard/engine/device_start.c - see reshard/engine/device_start.h. */
#include "reshard/engine/device_start.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/background_thread.h"
#include "reshard/engine/device_ring.h"

struct device_start {
    const struct transfer_plan *plan;
    bool has_begun, has_thread;
    atomic_bool is_done, is_unwanted;
    pthread_t thread;
    /* results, once it is done */
    struct device_ring *ring;
    bool is_open; /* the device */
    tp_status st;
    struct tp_err err;
};

struct device_start *device_start_new(const struct transfer_plan *p)
{
    struct device_start *s = calloc(1, sizeof *s);

    if (s)
        s->plan = p;
    return s;
}

static void *start(void *ctx)
{
    struct device_start *s = ctx;
    const struct transfer_device *on = s->plan->transfer.device;

    s->st = on->wait ? on->wait(on->ctx, &s->err) : TP_OK;
    s->is_open = !s->st;
    if (!s->st && !atomic_load(&s->is_unwanted))
        s->st = device_ring_open(&s->ring, s->plan, &s->err);
    atomic_store(&s->is_done, true);
    return NULL;
}

/* A device that is open already needs no thread: nothing copies meanwhile. */
void device_start_begin(struct device_start *s)
{
    if (s->has_begun)
        return;
    s->has_begun = true;
    s->has_thread =
        s->plan->transfer.device->wait && background_thread_start(&s->thread, start, s) == 0;
    if (!s->has_thread)
        start(s);
}

bool device_start_has_begun(const struct device_start *s)
{
    return s->has_begun;
}

bool device_start_runs(struct device_start *s)
{
    return s->has_begun && !atomic_load(&s->is_done);
}

static void join(struct device_start *s)
{
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    s->has_thread = false;
}

tp_status device_start_end(struct device_start *s, struct device_ring **out, bool *is_open,
                           struct tp_err *err)
{
    device_start_begin(s);
    join(s);
    *out = s->ring;
    s->ring = NULL;
    *is_open = s->is_open;
    if (s->st)
        *err = s->err;
    return s->st;
}

void device_start_free(struct device_start *s)
{
    if (!s)
        return;
    atomic_store(&s->is_unwanted, true);
    join(s);
    device_ring_close(s->ring);
    free(s);
}
