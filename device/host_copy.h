/*
 * device/host_copy.h - copies and fills as queued host functions: the `copy` and `fill` of a device
 * whose memory host code can access.
 */
#ifndef DEVICE_HOST_COPY_H
#define DEVICE_HOST_COPY_H

#include "device/device.h"

/* As device_copy_2d and device_fill, by device_submit. */
void host_copy(struct device_queue *q, const struct device_copy *c);
void host_copy_fill(struct device_queue *q, void *dst, int byte, int64_t n_bytes);

#endif
