/*
 * comm/cuda/nccl_connect.h - connect the two ranks of a communicator before they use it. NCCL does
 * that in the first message, whose call does not return until the other rank makes its own. In a
 * ring where all ranks send before they receive, all would wait for ever. Only comm/cuda/ uses
 * this.
 */
#ifndef COMM_CUDA_NCCL_CONNECT_H
#define COMM_CUDA_NCCL_CONNECT_H

#include <nccl.h>
#include <stdbool.h>

#include "core/err.h"

/* Send a byte from rank 0 of comm to rank 1, and wait until it is there. Both ranks call it. */
tp_status nccl_connect(ncclComm_t comm, bool sends, struct tp_err *err);

#endif
