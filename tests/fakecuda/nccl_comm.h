/*
 * tests/fakecuda/nccl_comm.h - communicators: nccl_comm.cc has the functions of nccl.h that make,
 * split and end them, and all that names their ranks.
 */
#ifndef TESTS_FAKECUDA_NCCL_COMM_H
#define TESTS_FAKECUDA_NCCL_COMM_H

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/fakecuda/nccl_memory.h"

/* The type that NVIDIA's header names: what one rank knows of a communicator. */
struct ncclComm {
    std::string name;
    fake::nccl_shared *shared;
    int rank, size;
    uint64_t n_splits;
    std::atomic<uint64_t> queued, finished; /* calls; they run one after the other */
    std::atomic<bool> aborted;              /* calls end; no function may be called with it */
    std::atomic<ncclResult_t> error;        /* of a call that runs */
    uint64_t parts;                         /* of collectives so far */
    uint64_t sent[fake::NCCL_RANKS_MAX],
        received[fake::NCCL_RANKS_MAX];                    /* calls to and from ranks */
    std::shared_ptr<int> users = std::make_shared<int>(0); /* each graph with its calls has one */
};

namespace fake
{

/* Report a call with a communicator that was aborted. */
void nccl_check_usable(const char *call, ncclComm_t comm);

/* Let an abort, or what destroys a communicator, wait until the end of the group that the thread
 * has begun. False: there is none. */
bool nccl_group_abort(ncclComm_t comm);
bool nccl_group_destroy(ncclComm_t comm);
/* Wait for what an abort waits for. */
void nccl_finish_abort(ncclComm_t comm);
/* Wait until all ranks destroy the communicator, and free it. */
void nccl_finish_destroy(ncclComm_t comm);

} // namespace fake

#endif
