/* device/staging.c - see device/staging.h. */
#include "device/staging.h"

#include <string.h>

tp_status staging_open(struct staging *s, struct device_queue *q, int64_t buffer_bytes,
                       struct tp_err *err)
{
    tp_status st = TP_OK;

    *s = (struct staging){ .queue = q, .buffer_bytes = buffer_bytes };
    for (int i = 0; i < STAGING_BUFFERS && !st; i++) {
        st = device_alloc_pinned(q->device, &s->buffer[i], buffer_bytes, err);
        if (!st)
            st = device_event_open(q->device, &s->copied[i], err);
    }
    return st;
}

void staging_close(struct staging *s)
{
    struct tp_err ignored;

    staging_finish(s, &ignored); /* wait, because copies may still use the buffers */
    for (int i = 0; i < STAGING_BUFFERS; i++) {
        device_event_close(s->copied[i]);
        if (s->queue)
            device_free(s->queue->device, s->buffer[i]);
    }
    *s = (struct staging){ 0 };
}

tp_status staging_buffer(struct staging *s, void **out, struct tp_err *err)
{
    s->next = (s->next + 1) % STAGING_BUFFERS;
    *out = s->buffer[s->next];
    return device_event_sync(s->copied[s->next], err);
}

void staging_send(struct staging *s, void *dst, int64_t n_bytes)
{
    device_copy(s->queue, dst, s->buffer[s->next], n_bytes);
    device_record(s->queue, s->copied[s->next]);
}

static int64_t piece_at(const struct staging *s, int64_t at, int64_t n_bytes)
{
    return n_bytes - at < s->buffer_bytes ? n_bytes - at : s->buffer_bytes;
}

tp_status staging_put(struct staging *s, void *dst, const void *src, int64_t n_bytes,
                      struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int64_t at = 0; at < n_bytes && !st; at += s->buffer_bytes) {
        int64_t n = piece_at(s, at, n_bytes);
        void *buffer;

        if ((st = staging_buffer(s, &buffer, err)))
            break;
        memcpy(buffer, (const char *)src + at, (size_t)n);
        staging_send(s, (char *)dst + at, n);
    }
    return st;
}

tp_status staging_finish(struct staging *s, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < STAGING_BUFFERS && !st; i++)
        if (s->copied[i])
            st = device_event_sync(s->copied[i], err);
    return st;
}
