/*
 * tests/fakecuda/nccl_memory.h - the memory that the ranks of an NCCL communicator share: a file
 * in /dev/shm, or in the folder FAKECUDA_SHARED, which is removed when all of them have joined.
 */
#ifndef TESTS_FAKECUDA_NCCL_MEMORY_H
#define TESTS_FAKECUDA_NCCL_MEMORY_H

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace fake
{

enum : size_t { NCCL_RANKS_MAX = 16, NCCL_CHUNK = 32 << 10 };

/* A call, as all ranks must make it. */
struct nccl_call {
    char name[24];
    uint64_t number; /* of the communicator's calls; of messages: of the pair's */
    uint64_t count;
    int32_t type, op;
    uint64_t in_graph; /* launched as a part of a graph */
};

/* Numbers of parts of calls: a rank posts a part, and the others take it. */
struct nccl_box {
    std::atomic<uint64_t> posted, taken;
    nccl_call call;
    alignas(64) char data[NCCL_CHUNK];
};

struct nccl_split {
    std::atomic<uint64_t> posted, taken;
    int color, key;
};

struct nccl_shared {
    std::atomic<int> size, joined;
    std::atomic<size_t> places[NCCL_RANKS_MAX]; /* each rank's host and GPU: ncclCommInitRank */
    std::atomic<int> left; /* ranks that have aborted: their connections are closed */
    std::atomic<int> pids[NCCL_RANKS_MAX];
    std::atomic<bool> ends[NCCL_RANKS_MAX];  /* a rank destroys or aborts the communicator */
    std::atomic<bool> calls[NCCL_RANKS_MAX]; /* a rank has called a collective: nccl_connect.h */
    std::atomic<bool> sends[NCCL_RANKS_MAX][NCCL_RANKS_MAX];    /* [from][to]: `from` has sent */
    std::atomic<bool> receives[NCCL_RANKS_MAX][NCCL_RANKS_MAX]; /* `to` has received */
    nccl_split splits[NCCL_RANKS_MAX];
    nccl_box boxes[NCCL_RANKS_MAX];                    /* of collectives */
    nccl_box messages[NCCL_RANKS_MAX][NCCL_RANKS_MAX]; /* [from][to] */
};

/* Join as one of `size` ranks, and wait for the others. place: this rank's host and GPU. */
nccl_shared *nccl_join(const std::string &name, int rank, int size, size_t place);

/* Wait until done() for as long as other ranks may take; what: for the message if they do not. */
template <typename F> void nccl_wait(const char *what, int rank, F done);
void nccl_pause(const char *what, int rank, double *waited);
/* Wait a little, for at most `patience` seconds together. */
void nccl_pause_for(const char *what, int rank, double patience, double *waited);

template <typename F> void nccl_wait(const char *what, int rank, F done)
{
    double waited = 0;

    while (!done())
        nccl_pause(what, rank, &waited);
}

} // namespace fake

#endif
