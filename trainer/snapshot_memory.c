/* trainer/snapshot_memory.c - see trainer/snapshot_memory.h. */
#include "trainer/snapshot_memory.h"

#include "core/background_thread.h"

static void *allocate(void *arg)
{
    struct snapshot_memory *m = arg;

    m->st = device_alloc_pinned(m->device, &m->pinned, m->n_bytes, &m->err);
    return NULL;
}

void snapshot_memory_begin(struct snapshot_memory *m)
{
    m->has_thread =
        m->device->pins_in_threads && background_thread_start(&m->thread, allocate, m) == 0;
    m->has_begun = m->has_thread;
}

static void join(struct snapshot_memory *m)
{
    if (m->has_thread)
        pthread_join(m->thread, NULL);
    m->has_thread = false;
}

tp_status snapshot_memory_finish(struct snapshot_memory *m, struct tp_err *err)
{
    join(m);
    if (!m->has_begun)
        allocate(m);
    m->has_begun = true;
    if (m->st)
        *err = m->err;
    return m->st;
}

void snapshot_memory_close(struct snapshot_memory *m)
{
    join(m);
    if (m->pinned)
        device_free(m->device, m->pinned);
    m->pinned = NULL;
}
