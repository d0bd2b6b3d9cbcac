/*
 * device/cuda/cuda_gpu.h - the driver and the GPUs of this machine.
 */
#ifndef DEVICE_CUDA_CUDA_GPU_H
#define DEVICE_CUDA_CUDA_GPU_H

#include <stdint.h>

#include "core/err.h"

/* How many GPUs this process sees, at least 1. TP_E_NOTFOUND: none that can be used; the message
 * says why and what to do. */
tp_status cuda_gpu_count(int *out, struct tp_err *err);

/* Write the place of a GPU on the machine's bus, such as 0000:3B:00.0. TP_E_GPU. */
tp_status cuda_gpu_name(char *out, int size, int ordinal, struct tp_err *err);

/* The bytes of a GPU's memory, of which other programs may use a part. The GPU is open. TP_E_GPU.
 */
tp_status cuda_gpu_memory(int64_t *out, int ordinal, struct tp_err *err);

/* Whether GPU number `ordinal`, counted from 0, can be used. TP_E_NOTFOUND: there is no driver, no
 * such GPU, or it is too old; the message says which and what to do. */
tp_status cuda_gpu_check(int ordinal, struct tp_err *err);

#endif
