/*
 * device/staging.h - copies between ordinary host memory and device memory, through two small
 * pinned buffers that are used in turn.
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

/* Copies are queued on q. TP_E_NOMEM. Call staging_close also after a failure. */
tp_status staging_open(struct staging *s, struct device_queue *q, int64_t buffer_bytes,
                       struct tp_err *err);
void staging_close(struct staging *s);

/* Get a pinned buffer that no copy uses any more. Fill up to buffer_bytes of it, then send it. */
tp_status staging_buffer(struct staging *s, void **out, struct tp_err *err);

/* Queue the copy of the first n_bytes of that buffer to device memory. */
void staging_send(struct staging *s, void *dst, int64_t n_bytes);

/* Copy host memory to device memory. On return src may be reused. */
tp_status staging_put(struct staging *s, void *dst, const void *src, int64_t n_bytes,
                      struct tp_err *err);

/* Wait for the copies that were sent. */
tp_status staging_finish(struct staging *s, struct tp_err *err);

#endif
