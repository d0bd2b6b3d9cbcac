/* comm/cuda/nccl_failure.c - see comm/cuda/nccl_failure.h. */
#include "comm/cuda/nccl_failure.h"

#include <stdio.h>
#include <string.h>

#include "device/cuda/cuda_error.h"

/* Whether the thread's GPU is why a call of NCCL has failed: NCCL does not say which error of CUDA
 * it met. After a failure of a GPU all calls that use it return that failure. */
static bool is_of_gpu(struct tp_err *err, const char *what, ncclResult_t r)
{
    size_t available, total;
    int gpu = 0;
    cudaError_t e = cudaSuccess;

    if (r == ncclUnhandledCudaError)
        e = cudaMemGetInfo(&available, &total);
    if (e == cudaSuccess)
        return false;
    (void)cudaGetDevice(&gpu);
    cuda_error_fail(err, gpu, what, (int)e);
    return true;
}

/* NCCL has no code for a GPU whose memory does not suffice: it returns ncclUnhandledCudaError, and
 * its text quotes CUDA's. */
static tp_status status_of(ncclResult_t r, const char *more)
{
    if (r == ncclUnhandledCudaError && more &&
        strstr(more, cudaGetErrorString(cudaErrorMemoryAllocation)))
        return TP_E_GPU_FULL;
    return r == ncclRemoteError ? TP_E_COMM : TP_E_IO;
}

tp_status nccl_fail(struct tp_err *err, const char *what, ncclResult_t r)
{
    const char *more = ncclGetLastError(NULL);

    if (is_of_gpu(err, what, r))
        return err->status;
    return tp_fail(err, status_of(r, more), "NCCL: %s failed: %s (error %d)%s%s", what,
                   ncclGetErrorString(r), (int)r, more && *more ? ": " : "", more ? more : "");
}

tp_status nccl_fail_async(struct tp_err *err, int gpu, ncclResult_t r)
{
    const char *more = ncclGetLastError(NULL);

    if (is_of_gpu(err, "a collective of NCCL", r))
        return err->status;
    return tp_fail(err, TP_E_IO,
                   "GPU %d: a collective of NCCL failed: %s (error %d). Check this GPU and the "
                   "network between the ranks (NCCL_DEBUG=WARN shows more); --resume continues "
                   "from the last checkpoint%s%s",
                   gpu, ncclGetErrorString(r), (int)r, more && *more ? ". NCCL says: " : "",
                   more ? more : "");
}

tp_status nccl_fail_cuda(struct tp_err *err, const char *what, cudaError_t e)
{
    char text[80];
    int gpu = 0;

    (void)cudaGetDevice(&gpu);
    snprintf(text, sizeof text, "%s for NCCL", what);
    return cuda_error_fail(err, gpu, text, (int)e);
}

void nccl_check(struct device_queue *q, const char *what, ncclResult_t r)
{
    struct tp_err err;

    if (r == ncclSuccess)
        return;
    nccl_fail(&err, what, r);
    device_fail(q->device, &err);
}
