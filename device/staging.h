/*
 * device/staging.h - ordinary host memory to device memory and back, through two small pinned
 * buffers used in turn.
 */
#ifndef DEVICE_STAGING_H
#define DEVICE_STAGING_H

#include "device/device.h"

enum { STAGING_BUFFERS = 2 };

struct staging {
    struct device_queue *queue; /* borrowed */
    int64_t buffer_bytes;
    void *buffer[STAGING_BUFFERS];                /* pinned */
    struct device_event *copied[STAGING_BUFFERS]; /* the last copy from or to a buffer */
    int next;
};

/* Copies are queued on q. TP_E_NOMEM. Close also after a failure. */
tp_status staging_open(struct staging *s, struct device_queue *q, int64_t buffer_bytes,
                       struct tp_err *err);
void staging_close(struct staging *s);

/* A pinned buffer that no copy uses any more: fill up to buffer_bytes of it, then send it. */
tp_status staging_buffer(struct staging *s, void **out, struct tp_err *err);

/* Queue the copy of the first n_bytes of that buffer to device memory. */
void staging_send(struct staging *s, void *dst, int64_t n_bytes);

/* Host memory to device memory: src may be reused on return. */
tp_status staging_put(struct staging *s, void *dst, const void *src, int64_t n_bytes,
                      struct tp_err *err);

/* Device memory to host memory: dst is filled on return. */
tp_status staging_get(struct staging *s, void *dst, const void *src, int64_t n_bytes,
                      struct tp_err *err);

/* Wait for the copies that were sent. */
tp_status staging_finish(struct staging *s, struct tp_err *err);

#endif
