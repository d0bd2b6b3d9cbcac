/*
 * comm/cuda/nccl_failure.h - failures of NCCL, and of CUDA where NCCL needs it. Only comm/cuda/
 * uses this.
 */
#ifndef COMM_CUDA_NCCL_FAILURE_H
#define COMM_CUDA_NCCL_FAILURE_H

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "core/err.h"
#include "device/device.h"

/* With NCCL's words; what: what failed, "a group of ranks". TP_E_COMM: another rank has failed, and
 * its message says why. TP_E_IO: this one has. TP_E_GPU, TP_E_GPU_FULL: its GPU, the calling
 * thread's, has failed. */
tp_status nccl_fail(struct tp_err *err, const char *what, ncclResult_t r);

/* A failure inside of a collective that was accepted, of which ncclCommGetAsyncError has told.
 * TP_E_IO, also for ncclRemoteError: both ends of a broken connection are told that, so each of
 * them has to say it. TP_E_GPU: the GPU has failed. */
tp_status nccl_fail_async(struct tp_err *err, int gpu, ncclResult_t r);

/* With CUDA's words; what: what NCCL needs, "a stream". TP_E_GPU, TP_E_GPU_FULL. */
tp_status nccl_fail_cuda(struct tp_err *err, const char *what, cudaError_t e);

/* A call on q was not accepted: its device has failed. Does nothing after ncclSuccess. */
void nccl_check(struct device_queue *q, const char *what, ncclResult_t r);

#endif
