/*
 * tests/fakecuda/nccl_progress.h - a collective or a message while it runs: part by part, through
 * the memory that the ranks share. A step does what is possible now and never waits.
 */
#ifndef TESTS_FAKECUDA_NCCL_PROGRESS_H
#define TESTS_FAKECUDA_NCCL_PROGRESS_H

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fakecuda/nccl_comm.h"

namespace fake
{

/* One call while it runs. */
struct nccl_progress {
    const char *name;
    ncclComm *comm;
    nccl_call call;
    const char *in;
    char *out;
    int peer;
    uint64_t number; /* of the communicator's calls */
    size_t width;
    size_t in_bytes, out_bytes;
    size_t done;      /* elements */
    bool has_begun;   /* on the device */
    bool has_started; /* the input counts as read */
    bool has_posted;  /* the current part */
    bool scatters;    /* the input is a part for each rank */
    bool is_done;     /* of a group, which may not be complete */
    /* Make progress. True: the call is complete. */
    bool (*step)(nccl_progress *);
};

/* A call as messages describe it. */
std::string nccl_text(const nccl_call &c);

/* The values of nccl_progress.step. Each returns whether the call is complete on this rank, and
 * reports a rank whose call is another one. Collectives: all ranks have posted all their parts. A
 * message: it is received. */
bool nccl_step_collective(nccl_progress *p);
bool nccl_step_send(nccl_progress *p);
bool nccl_step_recv(nccl_progress *p);

} // namespace fake

#endif
