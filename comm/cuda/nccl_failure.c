/* comm/cuda/nccl_failure.c - see comm/cuda/nccl_failure.h. */
#include "comm/cuda/nccl_failure.h"

tp_status nccl_fail(struct tp_err *err, const char *what, ncclResult_t r)
{
    const char *more = ncclGetLastError(NULL);
    tp_status st = r == ncclRemoteError ? TP_E_COMM : TP_E_IO;

    return tp_fail(err, st, "NCCL: %s failed: %s (error %d)%s%s", what, ncclGetErrorString(r),
                   (int)r, more && *more ? ": " : "", more ? more : "");
}

tp_status nccl_fail_cuda(struct tp_err *err, const char *what, cudaError_t e)
{
    return tp_fail(err, TP_E_IO, "%s for NCCL failed: %s (CUDA error %d)", what,
                   cudaGetErrorString(e), (int)e);
}

void nccl_check(struct device_queue *q, const char *what, ncclResult_t r)
{
    struct tp_err err;

    if (r == ncclSuccess)
        return;
    nccl_fail(&err, what, r);
    device_fail(q->device, &err);
}

void nccl_end(ncclComm_t comm, bool works)
{
    if (comm)
        (void)(works ? ncclCommDestroy(comm) : ncclCommAbort(comm));
}
