/* comm/cuda/nccl_connect.c - see comm/cuda/nccl_connect.h. */
#include "comm/cuda/nccl_connect.h"

#include <cuda_runtime_api.h>

#include "comm/cuda/nccl_failure.h"

static tp_status exchange(ncclComm_t comm, bool sends, void *byte, cudaStream_t s,
                          struct tp_err *err)
{
    ncclResult_t r =
        sends ? ncclSend(byte, 1, ncclUint8, 1, comm, s) : ncclRecv(byte, 1, ncclUint8, 0, comm, s);
    cudaError_t e;

    if (r != ncclSuccess)
        return nccl_fail(err, "the first message to a neighbour", r);
    e = cudaStreamSynchronize(s);
    return e == cudaSuccess ? TP_OK : nccl_fail_cuda(err, "the first message to a neighbour", e);
}

tp_status nccl_connect(ncclComm_t comm, bool sends, struct tp_err *err)
{
    cudaStream_t s = NULL;
    void *byte = NULL;
    cudaError_t e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    tp_status st;

    if (e == cudaSuccess)
        e = cudaMalloc(&byte, 1);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(byte, 0, 1, s);
    st = e == cudaSuccess ? exchange(comm, sends, byte, s, err)
                          : nccl_fail_cuda(err, "memory or a stream", e);
    if (!st) /* after a failure both may be in use for ever */
        (void)cudaFree(byte);
    if (!st)
        (void)cudaStreamDestroy(s);
    return st;
}
