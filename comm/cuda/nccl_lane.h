/*
 * comm/cuda/nccl_lane.h - lanes: what messages between neighbours of a ring use, so that a message
 * delays neither its sender's queue nor other messages. Each direction between two ranks has an
 * NCCL communicator of its own, and a stream of the sender. Only comm/cuda/ uses this.
 */
#ifndef COMM_CUDA_NCCL_LANE_H
#define COMM_CUDA_NCCL_LANE_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdbool.h>

#include "comm/cuda/nccl_watch.h"
#include "comm/transport.h"
#include "core/err.h"

/* Messages to or from a neighbour in the ring, in one direction. The sender is rank 0 of comm, the
 * receiver rank 1. Zero: it is not open. */
struct nccl_lane {
    ncclComm_t comm;
    cudaStream_t stream; /* of the sender; the receiver's queue receives, so once the lane is
                            connected it has none: a GPU has few queues for streams */
};

/* Up: from a rank to the next one; down: to the previous one. A ring of two ranks has no lanes
 * down, because the next rank is also the previous one. */
enum nccl_lane_name {
    NCCL_LANE_UP_OUT,
    NCCL_LANE_UP_IN,
    NCCL_LANE_DOWN_OUT,
    NCCL_LANE_DOWN_IN,
    NCCL_LANES
};

/* The lanes of a rank. Zero: none is open. */
struct nccl_lane_set {
    struct nccl_watch *watch; /* of their communicators */
    struct nccl_lane lane[NCCL_LANES];
    cudaEvent_t queued; /* what the last send waits for */
    void *bytes;        /* of the first messages, in device memory */
};

/* Whether the lanes for messages of c to this neighbour, and from the other one, are open. */
bool nccl_lane_set_has(const struct nccl_lane_set *l, const struct comm *c, enum comm_neighbour to);

/* Connect each rank of c for messages to this neighbour, which it is not yet; all: NCCL's
 * communicator of c, which has at least two ranks; w: its watch, which is in use. Collective over
 * c, on its GPU.
 * TP_E_COMM, TP_E_IO, TP_E_GPU, TP_E_GPU_FULL: what was opened stays for nccl_lane_set_close. */
tp_status nccl_lane_set_open(struct nccl_lane_set *l, const struct comm *c, enum comm_neighbour to,
                             ncclComm_t all, struct nccl_watch *w, struct tp_err *err);

/* Wait until the neighbours are connected, after nccl_lane_set_open. The watch is not in use, so
 * that it can abort when a neighbour is gone. TP_E_GPU, TP_E_GPU_FULL. */
tp_status nccl_lane_set_wait(struct nccl_lane_set *l, struct tp_err *err);

/* The lane for a message of c to, or from, a peer; NULL: it is not a neighbour, or its lane is not
 * open. */
const struct nccl_lane *nccl_lane_of(const struct nccl_lane_set *l, const struct comm *c,
                                     const struct comm_call *x);

/* End the lanes that are open, after their sends. Collective over the ranks of c. works: the GPU
 * has not failed; if it has, their communicators are left to nccl_watch_close. */
void nccl_lane_set_close(struct nccl_lane_set *l, bool works);

#endif
