/* tests/fakecuda/nccl_comm.cc - see tests/fakecuda/nccl_comm.h. */
#include "tests/fakecuda/nccl_comm.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "tests/fakecuda/api.h"
#include "tests/fakecuda/gpus.h"
#include "tests/fakecuda/handle.h"
#include "tests/fakecuda/stream.h"

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    static unsigned n;
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    memset(uniqueId, 0, sizeof *uniqueId);
    snprintf(uniqueId->internal, sizeof uniqueId->internal, "fakenccl-%d-%u-%lld%09ld",
             (int)getpid(), n++, (long long)t.tv_sec, t.tv_nsec);
    return ncclSuccess;
}

/* A host is its NCCL_HOSTID, or else its name. */
static size_t place()
{
    const char *id = getenv("NCCL_HOSTID");
    char host[256] = "";

    if (!id)
        gethostname(host, sizeof host - 1);
    return std::hash<std::string>()(std::to_string(fake::gpus_used()) + " " + (id ? id : host));
}

/* "Duplicate GPU detected" (init.cc of NVIDIA's library), unless it is told to accept that, which
 * it can be since version 2.30. */
static bool share_a_gpu(const ncclComm *c)
{
    const std::atomic<size_t> *places = c->shared->places;

    return !getenv("NCCL_MULTI_RANK_GPU_ENABLE") &&
           std::count(places, places + c->size, places[c->rank].load()) > 1;
}

static ncclComm *join(const std::string &name, int rank, int size)
{
    auto *c = new ncclComm();

    c->name = name;
    c->rank = rank;
    c->size = size;
    c->shared = fake::nccl_join(name, rank, size, place());
    fake::handle_created(c);
    return c;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
    commId.internal[NCCL_UNIQUE_ID_BYTES - 1] = '\0';
    *comm = join(commId.internal, rank, nranks);
    if (!share_a_gpu(*comm))
        return ncclSuccess;
    fake::handles_may_stay();
    *comm = nullptr;
    return ncclInvalidUsage;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *)
{
    fake::nccl_split *all = comm->shared->splits;
    std::vector<std::pair<int, int>> members; /* key and rank */
    uint64_t number = ++comm->n_splits;

    auto all_have = [&](std::atomic<uint64_t> fake::nccl_split::*counter, uint64_t n) {
        fake::nccl_wait("not all ranks have called ncclCommSplit", comm->rank, [&] {
            return std::all_of(all, all + comm->size,
                               [&](fake::nccl_split &s) { return s.*counter >= n; });
        });
    };
    all_have(&fake::nccl_split::taken, number - 1);
    all[comm->rank].color = color;
    all[comm->rank].key = key;
    all[comm->rank].posted = number;
    all_have(&fake::nccl_split::posted, number);
    for (int r = 0; r < comm->size; r++)
        if (all[r].color == color)
            members.push_back({ all[r].key, r });
    all[comm->rank].taken = number;
    *newcomm = nullptr;
    if (color == NCCL_SPLIT_NOCOLOR)
        return ncclSuccess;
    std::sort(members.begin(), members.end());
    for (int r = 0; r < (int)members.size(); r++)
        if (members[(size_t)r].second == comm->rank)
            *newcomm = join(comm->name + "-" + std::to_string(number) + "." + std::to_string(color),
                            r, (int)members.size());
    return ncclSuccess;
}

void fake::nccl_check_usable(const char *call, ncclComm_t comm)
{
    if (comm->aborted)
        report(nullptr, "NCCL: rank %d: %s of a communicator that was aborted", comm->rank, call);
}

/* NVIDIA's library waits for the end of graphs with calls of the communicator (commDestroySync in
 * its src/init.cc), here and when it aborts. */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    fake::nccl_check_usable("ncclCommDestroy", comm);
    if (comm->users.use_count() > 1)
        fake::report(nullptr,
                     "NCCL: rank %d: ncclCommDestroy waits for ever for a graph with calls of the "
                     "communicator",
                     comm->rank);
    if (comm->queued != comm->finished && fake::device_failure == cudaSuccess)
        fake::report(nullptr, "NCCL: rank %d destroys a communicator that has %llu queued calls",
                     comm->rank, (unsigned long long)(comm->queued - comm->finished));
    comm->shared->ends[comm->rank] = true;
    if (!fake::nccl_group_destroy(comm))
        fake::nccl_finish_destroy(comm);
    return ncclSuccess;
}

/* Whether a rank does not let others wait any more, because it ends the communicator, or its
 * process has ended. */
static bool has_ended(const fake::nccl_shared *s, int rank)
{
    return s->ends[rank] || (kill(s->pids[rank], 0) && errno == ESRCH);
}

/* NVIDIA's library waits until all ranks of a machine destroy the communicator
 * (bootstrapIntraNodeBarrier in its src/init.cc), and here all are on one. A group destroys its
 * communicators at the same time. */
void fake::nccl_finish_destroy(ncclComm_t comm)
{
    double waited = 0;

    for (int r = 0; r < comm->size; r++)
        for (; !has_ended(comm->shared, r); api_go_on())
            nccl_pause_for("not all ranks have called ncclCommDestroy", comm->rank, patience(),
                           &waited);
    if (comm->queued == comm->finished) {
        munmap(comm->shared, sizeof *comm->shared);
        handle_destroyed(comm);
        delete comm;
    }
}

/* Another thread may wait for the device meanwhile. The communicator stays, because queued calls
 * may still name it. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    fake::nccl_check_usable("ncclCommAbort", comm);
    comm->aborted = true;
    fake::handles_may_stay();
    comm->shared->left++;
    comm->shared->ends[comm->rank] = true;
    if (!fake::nccl_group_abort(comm))
        fake::nccl_finish_abort(comm);
    return ncclSuccess;
}

void fake::nccl_finish_abort(ncclComm_t comm)
{
    while (!gpus_end_aborts())
        pause();
    nccl_wait("ncclCommAbort waits for a graph with calls of the communicator", comm->rank,
              [=] { return comm->users.use_count() == 1; });
}

/* A rank whose call runs notices that another one has closed its connections. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    fake::nccl_check_usable("ncclCommGetAsyncError", comm);
    *asyncError = comm->error;
    if (comm->shared->left > 0 && comm->queued != comm->finished)
        *asyncError = ncclRemoteError;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    *count = comm->size;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}
