/* device/cuda/cuda_gpu.c - see device/cuda/cuda_gpu.h. */
#include "device/cuda/cuda_gpu.h"

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_error.h"

enum { OLDEST_MAJOR = 8 }; /* compute capability of the oldest GPUs that kernels are compiled for */

static tp_status check_driver(struct tp_err *err)
{
    int supported = 0, needed = 0;

    (void)cudaDriverGetVersion(&supported);
    (void)cudaRuntimeGetVersion(&needed);
    if (supported == 0)
        return tp_fail(err, TP_E_NOTFOUND,
                       "no NVIDIA driver is installed on this machine, so it has no usable GPU");
    if (supported / 1000 < needed / 1000)
        return tp_fail(err, TP_E_NOTFOUND,
                       "the NVIDIA driver is too old: it supports CUDA %d.%d, and %d.0 is needed. "
                       "Install a newer driver",
                       supported / 1000, supported % 1000 / 10, needed / 1000);
    return TP_OK;
}

static tp_status count_gpus(int *out, struct tp_err *err)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    const char *advice = cuda_error_advice((int)e);

    if (e != cudaSuccess && e != cudaErrorNoDevice)
        return tp_fail(err, TP_E_NOTFOUND,
                       "the GPUs of this machine cannot be used: %s (CUDA error %d); %s",
                       cudaGetErrorString(e), (int)e,
                       advice ? advice
                              : "see whether nvidia-smi works, and the messages of the kernel "
                                "(dmesg); in a container, whether it was started with GPUs");
    *out = n;
    return TP_OK;
}

tp_status cuda_gpu_count(int *out, struct tp_err *err)
{
    tp_status st;

    if ((st = check_driver(err)) || (st = count_gpus(out, err)))
        return st;
    return *out > 0 ? TP_OK
                    : tp_fail(err, TP_E_NOTFOUND,
                              "this machine has an NVIDIA driver, and no GPU that this process "
                              "may use; see nvidia-smi -L, and CUDA_VISIBLE_DEVICES");
}

tp_status cuda_gpu_name(char *out, int size, int ordinal, struct tp_err *err)
{
    cudaError_t e = cudaDeviceGetPCIBusId(out, size, ordinal);

    return e == cudaSuccess ? TP_OK
                            : cuda_error_fail(err, ordinal, "cudaDeviceGetPCIBusId", (int)e);
}

tp_status cuda_gpu_memory(int64_t *out, int ordinal, struct tp_err *err)
{
    size_t available = 0, total = 0;
    cudaError_t e = cudaSetDevice(ordinal);

    if (e == cudaSuccess)
        e = cudaMemGetInfo(&available, &total);
    if (e != cudaSuccess)
        return cuda_error_fail(err, ordinal, "cudaMemGetInfo", (int)e);
    *out = (int64_t)total;
    return TP_OK;
}

tp_status cuda_gpu_check(int ordinal, struct tp_err *err)
{
    int n = 0, major = 0, minor = 0;
    tp_status st;

    if ((st = check_driver(err)) || (st = count_gpus(&n, err)))
        return st;
    if (ordinal < 0 || ordinal >= n)
        return tp_fail(err, TP_E_NOTFOUND,
                       "there is no GPU %d: this machine has %d usable GPUs, counted from 0",
                       ordinal, n);
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
    if (major < OLDEST_MAJOR)
        return tp_fail(err, TP_E_NOTFOUND,
                       "GPU %d is too old: its compute capability is %d.%d, and %d.0 is needed",
                       ordinal, major, minor, OLDEST_MAJOR);
    return TP_OK;
}
