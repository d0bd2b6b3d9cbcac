/*
 * tests/unit/device_read.h - copies device memory to host memory. Programs have pinned memory and
 * queues of their own for that.
 */
#ifndef TESTS_UNIT_DEVICE_READ_H
#define TESTS_UNIT_DEVICE_READ_H

#include <string.h>

#include "device/staging.h"

/* On return dst is filled. TP_E_*: the device's failure. */
static inline tp_status device_read(struct staging *s, void *dst, const void *src, int64_t n_bytes,
                                    struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int64_t at = 0; at < n_bytes && !st; at += s->buffer_bytes) {
        int64_t n = n_bytes - at < s->buffer_bytes ? n_bytes - at : s->buffer_bytes;
        void *buffer;

        if ((st = staging_buffer(s, &buffer, err)))
            break;
        device_copy(s->queue, buffer, (const char *)src + at, n);
        device_record(s->queue, s->copied[s->next]);
        if (!(st = staging_finish(s, err)))
            memcpy((char *)dst + at, buffer, (size_t)n);
    }
    return st;
}

#endif
