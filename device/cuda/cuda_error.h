/*
 * device/cuda/cuda_error.h - the sentence for an error of CUDA. Inside device/cuda/.
 */
#ifndef DEVICE_CUDA_CUDA_ERROR_H
#define DEVICE_CUDA_CUDA_ERROR_H

#include "core/err.h"

/* tp_fail with TP_E_GPU for a call that returned `error`. The calling thread's last error is
 * forgotten, so that a later launch does not report it. */
tp_status cuda_error_fail(struct tp_err *err, int ordinal, const char *what, int error);

#endif
