/*
 * device/cuda/cuda_device.h - the state of an open GPU, and its first failure.
 */
#ifndef DEVICE_CUDA_CUDA_DEVICE_H
#define DEVICE_CUDA_CUDA_DEVICE_H

#include "device/cuda/cuda_memory.h"
#include "device/device.h"
#include "device/failure.h"

struct cuda_device {
    struct device device;
    int ordinal, processors, capability; /* capability: 90 is 9.0 */
    int64_t pitch_max;                   /* of a copy of several rows */
    struct cuda_memory memory;
    struct device_failure failure;
};

struct cuda_device *cuda_device_of(const struct device *d);

/* Let the calling thread's calls of CUDA mean this GPU. False: the device has failed. */
bool cuda_device_begin(struct device *d);

/* Keep the first failure; all later work is refused. */
void cuda_device_fail(struct device *d, const struct tp_err *err);

/* The same for what a call of CUDA returned: `what` was queued, and the error; 0 for none. */
void cuda_device_check(struct device *d, const char *what, int error);

/* A library of NVIDIA's has failed in `what`, and does not say why. Keep the GPU's failure, if that
 * is why. Returns whether the device has failed. */
bool cuda_device_probe(struct device *d, const char *what);

/* The failure that was kept. TP_OK: none. */
tp_status cuda_device_failure(struct device *d, struct tp_err *err);

#endif
