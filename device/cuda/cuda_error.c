/* device/cuda/cuda_error.c - see device/cuda/cuda_error.h. */
#include "device/cuda/cuda_error.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

const char *cuda_error_advice(int error)
{
    switch (error) {
    case cudaErrorDevicesUnavailable:
        return "another process has this GPU alone, or its MPS server has ended: see "
               "nvidia-smi -q -d COMPUTE,PIDS";
    case cudaErrorSystemNotReady:
        return "GPUs that NVSwitches connect need NVIDIA's fabric manager: start the service "
               "nvidia-fabricmanager, of the driver's version";
    case cudaErrorSystemDriverMismatch:
        return "the driver in the kernel has another version than its libraries, as after an "
               "update: restart the machine";
    default:
        return NULL;
    }
}

tp_status cuda_error_no_memory(struct tp_err *err, int ordinal, const char *what)
{
    size_t available = 0, total = 0;
    char free_bytes[80];

    (void)cudaGetLastError();
    if (cudaMemGetInfo(&available, &total) != cudaSuccess || total == 0)
        snprintf(free_bytes, sizeof free_bytes, "how much is free is not known");
    else
        snprintf(free_bytes, sizeof free_bytes, "%zu of its %zu bytes are free", available, total);
    (void)cudaGetLastError();
    return tp_fail(err, TP_E_GPU_FULL,
                   "GPU %d is out of memory: %s; %s. "
                   "Use more GPUs or a smaller microbatch; with tp-reshard, a smaller --device-mem",
                   ordinal, what, free_bytes);
}

tp_status cuda_error_fail(struct tp_err *err, int ordinal, const char *what, int error)
{
    const char *advice = cuda_error_advice(error);
    char text[80];

    if (error == cudaErrorMemoryAllocation) {
        snprintf(text, sizeof text, "%s failed", what);
        return cuda_error_no_memory(err, ordinal, text);
    }
    (void)cudaGetLastError();
    return tp_fail(err, TP_E_GPU, "GPU %d: %s failed: %s (CUDA error %d)%s%s", ordinal, what,
                   cudaGetErrorString((cudaError_t)error), error, advice ? "; " : "",
                   advice ? advice : "");
}
