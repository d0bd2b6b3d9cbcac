/*
 * kernels/cuda/blas.cuh - cuBLAS for a queue: a handle of its own with the queue's stream and a
 * workspace, so the results of a queue do not depend on what other queues do.
 */
#ifndef KERNELS_CUDA_BLAS_CUH
#define KERNELS_CUDA_BLAS_CUH

#include <cublas_v2.h>

#include "kernels/cuda/run.h"

struct blas {
    cublasHandle_t handle;
    bool lacks_groups[2]; /* cuBLAS has refused grouped products: of f32, of bf16 */
};

/* The first bytes of the queue's scratch are the workspace: cuBLAS's own on Hopper has this size.
 * After them is room for what an operation gives to cuBLAS in device memory. An operation takes
 * both together, so scratch does not grow when the first one needs room. */
static const size_t BLAS_WORKSPACE_BYTES = 32 << 20, BLAS_ROOM_BYTES = 64 << 10;

/* NULL: it failed, and the device keeps the failure. */
struct blas *blas_of(struct device_queue *q);

/* Keep the failure of `what` with the device. */
void blas_fail(struct device_queue *q, const char *what, cublasStatus_t s);

static inline cudaDataType blas_type(enum dtype t)
{
    return t == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

#endif
