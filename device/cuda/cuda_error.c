/* device/cuda/cuda_error.c - see device/cuda/cuda_error.h. */
#include "device/cuda/cuda_error.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

tp_status cuda_error_no_memory(struct tp_err *err, int ordinal, const char *what)
{
    size_t available = 0, total = 0;

    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&available, &total);
    return tp_fail(err, TP_E_GPU_FULL,
                   "GPU %d is out of memory: %s; %zu of its %zu bytes are free. "
                   "Use more GPUs or a smaller microbatch; with tp-reshard, a smaller --device-mem",
                   ordinal, what, available, total);
}

tp_status cuda_error_fail(struct tp_err *err, int ordinal, const char *what, int error)
{
    char text[80];

    if (error == cudaErrorMemoryAllocation) {
        snprintf(text, sizeof text, "%s failed", what);
        return cuda_error_no_memory(err, ordinal, text);
    }
    (void)cudaGetLastError();
    return tp_fail(err, TP_E_GPU, "GPU %d: %s failed: %s (CUDA error %d)", ordinal, what,
                   cudaGetErrorString((cudaError_t)error), error);
}
