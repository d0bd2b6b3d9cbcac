/* comm/cuda/nccl_exchange.c - see comm/cuda/nccl_exchange.h. */
#include "comm/cuda/nccl_exchange.h"

#include "comm/cuda/nccl_failure.h"

enum { BYTE_STEP = 16 }; /* from the byte that is sent to the one that is received */

ncclResult_t nccl_exchange_queue(const struct nccl_exchange_ring *r, const struct nccl_exchange *x,
                                 cudaStream_t stream)
{
    int next = (r->rank + 1) % r->size, previous = (r->rank + r->size - 1) % r->size;
    ncclResult_t result = ncclGroupStart(), end;

    if (result != ncclSuccess)
        return result;
    result = ncclSend(x->in, x->n, x->type, next, r->comm, stream);
    if (result == ncclSuccess)
        result = ncclRecv(x->out, x->n, x->type, previous, r->comm, stream);
    end = ncclGroupEnd(); /* also after a failure: the group is this thread's */
    return result == ncclSuccess ? end : result;
}

static cudaError_t open_bytes(struct nccl_exchange_first *f)
{
    cudaError_t e = cudaMalloc((void **)&f->bytes, 2 * (size_t)BYTE_STEP);

    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&f->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(f->bytes, 0, 2 * (size_t)BYTE_STEP, f->stream);
    return e;
}

tp_status nccl_exchange_first_queue(struct nccl_exchange_first *f,
                                    const struct nccl_exchange_ring *r, struct tp_err *err)
{
    cudaError_t e;
    ncclResult_t result;

    *f = (struct nccl_exchange_first){ 0 };
    if ((e = open_bytes(f)) != cudaSuccess)
        return nccl_fail_cuda(err, "the first message to a neighbour", e);
    result = nccl_exchange_queue(
        r, &(struct nccl_exchange){ f->bytes + BYTE_STEP, f->bytes, 1, ncclUint8 }, f->stream);
    return result == ncclSuccess ? TP_OK
                                 : nccl_fail(err, "the first message to a neighbour", result);
}

tp_status nccl_exchange_first_wait(struct nccl_exchange_first *f, tp_status st, struct tp_err *err)
{
    cudaError_t e;

    if (st)
        return st;
    if ((e = cudaStreamSynchronize(f->stream)) == cudaSuccess)
        e = cudaStreamDestroy(f->stream);
    if (e == cudaSuccess)
        e = cudaFree(f->bytes);
    return e == cudaSuccess ? TP_OK : nccl_fail_cuda(err, "the first message to a neighbour", e);
}
