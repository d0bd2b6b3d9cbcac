/*
 * device/cuda/cuda_event.h - the events of the CUDA device, as struct device_ops documents them.
 * Inside device/cuda/.
 */
#ifndef DEVICE_CUDA_CUDA_EVENT_H
#define DEVICE_CUDA_CUDA_EVENT_H

#include "device/device.h"

tp_status cuda_event_open(struct device *d, struct device_event **out, struct tp_err *err);
void cuda_event_close(struct device_event *e);
void cuda_event_record(struct device_queue *q, struct device_event *e);
void cuda_event_wait(struct device_queue *q, struct device_event *e);
tp_status cuda_event_sync(struct device_event *e, struct tp_err *err);
bool cuda_event_done(const struct device_event *e);

#endif
