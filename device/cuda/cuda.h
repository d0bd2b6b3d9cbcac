/*
 * device/cuda/cuda.h - the CUDA device: an NVIDIA GPU. Queues are streams, events are events.
 *
 * It is compiled into the library that comm/cuda/library.h loads, and into no program. It cannot
 * run host functions (device_submit) and has no use for memory of others (device_adopt).
 */
#ifndef DEVICE_CUDA_CUDA_H
#define DEVICE_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/device.h"

/* Open GPU number `ordinal`, counted from 0. TP_E_NOTFOUND: there is no driver, no such GPU, or it
 * is too old; the message says which and what to do. */
tp_status cuda_device_open(struct device **out, int ordinal, struct tp_err *err);

#ifdef __cplusplus
}
#endif

#endif
