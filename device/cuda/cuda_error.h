/*
 * device/cuda/cuda_error.h - the sentence for an error of CUDA. Inside device/cuda/.
 */
#ifndef DEVICE_CUDA_CUDA_ERROR_H
#define DEVICE_CUDA_CUDA_ERROR_H

#include "core/err.h"

/* What to do about an error of CUDA, or NULL: there is nothing particular. */
const char *cuda_error_advice(int error);

/* tp_fail for a call that returned `error`: with TP_E_GPU_FULL if the GPU has no memory left, which
 * streams, events, kernels and graphs need too; otherwise with TP_E_GPU. The calling thread's last
 * error is forgotten, so that a later launch does not report it. */
tp_status cuda_error_fail(struct tp_err *err, int ordinal, const char *what, int error);

/* TP_E_GPU_FULL: `what` does not fit into the memory of the GPU, which is the calling thread's. */
tp_status cuda_error_no_memory(struct tp_err *err, int ordinal, const char *what);

#endif
