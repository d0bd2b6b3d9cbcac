/*
 * comm/cuda/nccl_exchange.h - a message to the next rank and one from the previous rank of a ring,
 * in one call of NCCL. Only comm/cuda/ uses this.
 *
 * NCCL runs the calls of a group at once, so the ranks need not take turns, and no rank depends on
 * two kernels that run at the same time.
 */
#ifndef COMM_CUDA_NCCL_EXCHANGE_H
#define COMM_CUDA_NCCL_EXCHANGE_H

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "comm/comm.h"
#include "core/err.h"

/* A ring of at least two ranks, and this rank's number. */
struct nccl_exchange_ring {
    ncclComm_t comm;
    int rank, size;
};

struct nccl_exchange {
    void *out;
    const void *in;
    size_t n; /* elements of each */
    ncclDataType_t type;
};

ncclResult_t nccl_exchange_queue(const struct nccl_exchange_ring *r, const struct nccl_exchange *x,
                                 cudaStream_t stream);

/* The bytes that connect a ring, on their way. */
struct nccl_exchange_first {
    char *bytes;
    cudaStream_t stream;
};

/* Queue the exchange of a byte: in the first one NCCL connects the ranks, and its calls return
 * when the neighbours have made theirs. Collective. End with nccl_exchange_first_wait, also after
 * a failure. */
tp_status nccl_exchange_first_queue(struct nccl_exchange_first *f,
                                    const struct nccl_exchange_ring *r, struct tp_err *err);

/* Wait until the byte is there, and free f. st: what nccl_exchange_first_queue returned. After a
 * failure nothing is freed, because that would wait for the other ranks. Returns st, or a failure
 * of its own. */
tp_status nccl_exchange_first_wait(struct nccl_exchange_first *f, tp_status st, struct tp_err *err);

#endif
