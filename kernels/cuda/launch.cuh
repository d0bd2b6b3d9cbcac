/*
 * kernels/cuda/launch.cuh - how large the persistent kernels of this folder are launched.
 */
#ifndef KERNELS_CUDA_LAUNCH_CUH
#define KERNELS_CUDA_LAUNCH_CUH

#include <cuda_runtime_api.h>
#include <stdint.h>

extern "C" {
#include "core/err.h"
}

enum { LAUNCH_THREADS = 256 };

static __device__ inline int64_t launch_thread(void)
{
    return (int64_t)blockIdx.x * LAUNCH_THREADS + threadIdx.x;
}

static __device__ inline int64_t launch_threads(void)
{
    return (int64_t)gridDim.x * LAUNCH_THREADS;
}

/* Blocks for so many threads' work, at most what the current device holds at once with
 * blocks_a_processor on each of its processors; at least 1. */
static inline unsigned launch_blocks(int64_t threads, int blocks_a_processor)
{
    int device = 0, processors = 1;
    int64_t most, wanted = threads / LAUNCH_THREADS + (threads % LAUNCH_THREADS != 0);

    /* a failure here shows as a failure of the launch */
    if (cudaGetDevice(&device) == cudaSuccess)
        (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    most = (int64_t)processors * blocks_a_processor;
    return (unsigned)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

/* The status of the last launch. */
static inline tp_status launch_status(const char *what, struct tp_err *err)
{
    cudaError_t e = cudaGetLastError();

    return e == cudaSuccess
               ? TP_OK
               : tp_fail(err, TP_E_INTERNAL, "the GPU refused %s: %s", what, cudaGetErrorString(e));
}

#endif
