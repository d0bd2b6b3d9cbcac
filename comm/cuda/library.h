/*
 * comm/cuda/library.h - CUDA as a library that is loaded on demand: libtp-cuda.so has the CUDA
 * device, its kernels, and collectives over NCCL. Programs start and work without it, without a
 * driver and without a GPU.
 */
#ifndef COMM_CUDA_LIBRARY_H
#define COMM_CUDA_LIBRARY_H

#include <stdint.h>

#include "core/err.h"

struct comm_transport;
struct device;
struct kernel_ops;

/* What the library exports, as CUDA_LIBRARY_SYMBOL. */
struct cuda_library {
    const char *version; /* of this project: the library and the program have the same */
    /* How many GPUs can be used. TP_E_NOTFOUND: none; the message says why. */
    tp_status (*count)(int *out, struct tp_err *err);
    /* Write the place of a GPU on the machine's bus, which no other GPU there has. TP_E_GPU. */
    tp_status (*name)(char *out, int size, int ordinal, struct tp_err *err);
    /* The bytes of a GPU's memory, after device_open. TP_E_GPU. */
    tp_status (*memory)(int64_t *out, int ordinal, struct tp_err *err);
    tp_status (*device_open)(struct device **out, int ordinal, struct tp_err *err);
    const struct kernel_ops *kernels;
    const struct comm_transport *transport; /* for comm_use_device */
};
#define CUDA_LIBRARY_SYMBOL "tp_cuda_library"

/* Load the library at `path`. It stays loaded. TP_E_NOTFOUND: it is not there, or cannot be loaded,
 * or is of another version. */
tp_status cuda_library_load(const struct cuda_library **out, const char *path, struct tp_err *err);

#endif
