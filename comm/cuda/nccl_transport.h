/*
 * comm/cuda/nccl_transport.h - collectives between GPUs by NVIDIA's NCCL, on the streams of queues
 * of the CUDA device. It is compiled into the library of comm/cuda/library.h. Only comm/ uses this.
 *
 * Messages go to the next or the previous rank of their communicator, in a ring. A send runs on a
 * stream of its own, with an NCCL communicator of its own for each direction between two ranks, so
 * it delays neither its queue nor what other ranks send. An all-to-all is a group of messages on
 * its queue, whose sizes are read from host memory (comm/collective.h).
 */
#ifndef COMM_CUDA_NCCL_TRANSPORT_H
#define COMM_CUDA_NCCL_TRANSPORT_H

#include "comm/transport.h"

extern const struct comm_transport comm_nccl_transport;

#endif
