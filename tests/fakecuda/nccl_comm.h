/*
 * tests/fakecuda/nccl_comm.h - communicators: nccl_comm.cc has the functions of nccl.h that make,
 * split and end them, and all that names their ranks.
 */
#ifndef TESTS_FAKECUDA_NCCL_COMM_H
#define TESTS_FAKECUDA_NCCL_COMM_H

#include <nccl.h>

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
    uint64_t queued, finished; /* calls; they run one after the other */
    uint64_t parts;            /* of collectives so far */
    uint64_t sent[fake::NCCL_RANKS_MAX],
        received[fake::NCCL_RANKS_MAX];                    /* calls to and from ranks */
    std::shared_ptr<int> users = std::make_shared<int>(0); /* each graph with its calls has one */
};

#endif
