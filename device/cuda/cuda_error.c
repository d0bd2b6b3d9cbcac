/* device/cuda/cuda_error.c - see device/cuda/cuda_error.h. */
#include "device/cuda/cuda_error.h"

#include <cuda_runtime_api.h>

tp_status cuda_error_fail(struct tp_err *err, int ordinal, const char *what, int error)
{
    (void)cudaGetLastError();
    return tp_fail(err, TP_E_GPU, "GPU %d: %s failed: %s (CUDA error %d)", ordinal, what,
                   cudaGetErrorString((cudaError_t)error), error);
}
