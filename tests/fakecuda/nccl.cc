/*
 * tests/fakecuda/nccl.cc - NCCL between processes of one host: how its calls are checked and
 * queued. A collective is an operation of its stream that ends when all ranks have made the same
 * call; until then other streams go on. A send ends when it is received: NVIDIA's library may or
 * may not buffer it.
 *
 * All ranks must make the same calls on a communicator in the same order. If they do not, each
 * names itself and another rank, and both calls.
 *
 * nccl_comm.cc has the communicators, nccl_progress.cc what a call does while it runs,
 * nccl_element.cc the arithmetic, nccl_memory.cc the memory that ranks share.
 */
#include <nccl.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakecuda/api.h"
#include "tests/fakecuda/gpus.h"
#include "tests/fakecuda/handle.h"
#include "tests/fakecuda/nccl_comm.h"
#include "tests/fakecuda/nccl_connect.h"
#include "tests/fakecuda/nccl_element.h"
#include "tests/fakecuda/nccl_progress.h"
#include "tests/fakecuda/stream.h"

static_assert(ncclUint8 == 1 && ncclInt64 == 4 && ncclFloat32 == 7 && ncclFloat64 == 8 &&
                  ncclBfloat16 == 9 && ncclSum == 0 && ncclMax == 2 &&
                  ncclUnhandledCudaError == 1 && ncclSystemError == 2 && ncclInvalidArgument == 4 &&
                  ncclInvalidUsage == 5 && ncclRemoteError == 6 && ncclInProgress == 7,
              "the numbers are NVIDIA's");

using fake::nccl_progress;

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess              ? "no error"
           : result == ncclUnhandledCudaError ? "unhandled cuda error"
           : result == ncclSystemError        ? "unhandled system error"
           : result == ncclInvalidUsage ? "invalid usage (run with NCCL_DEBUG=WARN for details)"
           : result == ncclRemoteError  ? "remote process exited or there was a network error"
                                        : "invalid argument";
}

static auto &last_error = *new std::string; /* so that it is there at the end, too */

/* The last warning, as NVIDIA's library keeps it, also where it prints none. */
const char *ncclGetLastError(ncclComm_t)
{
    return last_error.c_str();
}

static ncclResult_t fail_as_the_gpu()
{
    const cudaError_t error = fake::device_failure;

    last_error =
        "Cuda failure " + std::to_string((int)error) + " '" + cudaGetErrorString(error) + "'";
    fake::handles_may_stay();
    return ncclUnhandledCudaError;
}

/* ---- queuing ---- */

static void check_buffer(const nccl_progress *p, const char *side, const void *buf, size_t n)
{
    const char *begin;
    size_t size;

    if (n && (!fake::is_kind(fake::DEVICE_MEMORY, buf) ||
              !fake::memory_contains(fake::DEVICE_MEMORY, buf, n, &begin, &size)))
        fake::report(nullptr, "NCCL: rank %d: %s: the %s, %zu bytes at %p, is not device memory",
                     p->comm->rank, fake::nccl_text(p->call).c_str(), side, n, buf);
}

/* The calls of a thread between ncclGroupStart and ncclGroupEnd: messages of one communicator and
 * stream, which are one of its calls and progress together; or aborts; or communicators that end.
 */
struct group {
    bool is_open;
    cudaStream_t stream;
    std::vector<std::shared_ptr<nccl_progress>> calls;
    std::vector<ncclComm_t> aborted, destroyed;
};
static thread_local group grouped;

bool fake::nccl_group_abort(ncclComm_t comm)
{
    if (grouped.is_open)
        grouped.aborted.push_back(comm);
    return grouped.is_open;
}

bool fake::nccl_group_destroy(ncclComm_t comm)
{
    if (grouped.is_open)
        grouped.destroyed.push_back(comm);
    return grouped.is_open;
}

/* After an abort, what it should have written has any content. */
static bool run_part(nccl_progress *p)
{
    if (!p->has_started && p->in_bytes)
        fake::watch_read(p->in, p->in_bytes);
    p->has_started = true;
    if (!p->comm->aborted && !p->step(p))
        return false;
    if (p->out_bytes)
        fake::watch_fill(p->out, p->out_bytes);
    return true;
}

/* Whether the network is lost in this call or in an earlier one. Then the call hangs until it is
 * aborted. */
static bool hangs(nccl_progress *p)
{
    static bool lost;

    lost = lost || (!p->has_begun && !fake::gpus_have_network());
    p->has_begun = true;
    if (lost)
        p->comm->error = ncclRemoteError;
    return lost && !p->comm->aborted;
}

static bool run_step(nccl_progress *p)
{
    if (p->comm->finished + 1 != p->number)
        return false; /* an earlier call of the communicator, on another stream */
    if (hangs(p) || !run_part(p))
        return false;
    p->comm->finished++;
    return true;
}

/* All calls of a group, in any order. */
static bool run_group(std::vector<std::shared_ptr<nccl_progress>> *calls)
{
    ncclComm *comm = (*calls)[0]->comm;
    bool is_done = true;

    if (comm->finished + 1 != (*calls)[0]->number)
        return false;
    if (hangs((*calls)[0].get()))
        return false;
    for (auto &p : *calls) {
        p->is_done = p->is_done || run_part(p.get());
        is_done = is_done && p->is_done;
    }
    comm->finished += is_done;
    return is_done;
}

/* The call, and the elements that it was given: a line of the file FAKECUDA_CALLS. */
static void record(const nccl_progress *p)
{
    fake::append_line("FAKECUDA_CALLS", "%s %s %llu %d\n", p->call.name,
                      fake::nccl_type_name(p->call.type), (unsigned long long)p->call.count,
                      p->comm->size);
}

static void add_to_group(const std::shared_ptr<nccl_progress> &p, cudaStream_t stream)
{
    if (p->step == fake::nccl_step_collective)
        fake::report(nullptr, "NCCL: the fake device groups messages only, and this is a %s",
                     p->name);
    if (!grouped.calls.empty() && (grouped.calls[0]->comm != p->comm || grouped.stream != stream))
        fake::report(nullptr, "NCCL: the calls of a group are of several communicators or streams");
    for (const auto &other : grouped.calls)
        if (p->out_bytes && other->out_bytes && p->out < other->out + other->out_bytes &&
            other->out < p->out + p->out_bytes)
            fake::report(nullptr, "NCCL: rank %d: two receives of a group overlap", p->comm->rank);
    grouped.stream = stream;
    grouped.calls.push_back(p);
}

ncclResult_t ncclGroupStart(void)
{
    if (grouped.is_open)
        fake::report(nullptr, "NCCL: the fake device has no groups in groups");
    grouped = {};
    grouped.is_open = true;
    return ncclSuccess;
}

using calls = std::vector<std::shared_ptr<nccl_progress>>;

/* Number a call when it is queued: of a graph, each time that the graph is launched. */
static void number(nccl_progress *p, bool in_graph)
{
    ncclComm *c = p->comm;

    p->number = c->queued;
    p->call.in_graph = in_graph;
    p->call.number = p->step == fake::nccl_step_send   ? ++c->sent[p->peer]
                     : p->step == fake::nccl_step_recv ? ++c->received[p->peer]
                                                       : p->number;
    record(p);
}

static void connect(const calls &made)
{
    std::vector<const nccl_progress *> all;

    for (const auto &p : made)
        all.push_back(p.get());
    fake::nccl_connect(all);
}

ncclResult_t ncclGroupEnd(void)
{
    const calls made = grouped.calls;
    const std::vector<ncclComm_t> aborted = grouped.aborted, destroyed = grouped.destroyed;
    const cudaStream_t stream = grouped.stream;
    std::shared_ptr<int> user;

    if (!grouped.is_open)
        fake::report(nullptr, "NCCL: ncclGroupEnd without ncclGroupStart");
    grouped = {};
    for (ncclComm_t comm : aborted)
        fake::nccl_finish_abort(comm);
    for (ncclComm_t comm : destroyed)
        fake::nccl_finish_destroy(comm);
    if (made.empty())
        return ncclSuccess;
    connect(made);
    user = made[0]->comm->users;
    fake::api_enqueue_made(stream, "group of messages", [=](bool in_graph) {
        auto own = std::make_shared<calls>();

        (void)user;
        made[0]->comm->queued++;
        for (const auto &p : made) {
            own->push_back(std::make_shared<nccl_progress>(*p));
            number(own->back().get(), in_graph);
        }
        return [=] { return run_group(own.get()); };
    });
    return ncclSuccess;
}

static ncclResult_t queue(const nccl_progress &made, cudaStream_t stream)
{
    nccl_progress next = made; /* as messages show it */
    std::shared_ptr<int> user = made.comm->users;

    fake::nccl_check_usable(made.name, made.comm);
    fake::gpus_fail_in_nccl();
    if (fake::device_failure != cudaSuccess)
        return fail_as_the_gpu();
    if (!fake::gpus_accept_nccl()) {
        fake::handles_may_stay();
        return ncclSystemError;
    }
    next.call.number = made.comm->queued + 1;
    check_buffer(&next, "input", made.in, made.in_bytes);
    check_buffer(&next, "output", made.out, made.out_bytes);
    if (grouped.is_open) {
        add_to_group(std::make_shared<nccl_progress>(made), stream);
        return ncclSuccess;
    }
    fake::nccl_connect({ &made });
    fake::api_enqueue_made(stream, made.name, [=](bool in_graph) {
        auto p = std::make_shared<nccl_progress>(made);

        (void)user;
        p->comm->queued++;
        number(p.get(), in_graph);
        return [=] { return run_step(p.get()); };
    });
    return ncclSuccess;
}

static nccl_progress new_call(const char *name, ncclComm_t comm, const void *in, void *out,
                              size_t count, ncclDataType_t type)
{
    nccl_progress p = {};

    p.name = name;
    p.comm = comm;
    snprintf(p.call.name, sizeof p.call.name, "%s", name);
    p.call.count = count;
    p.call.type = type;
    p.in = (const char *)in;
    p.out = (char *)out;
    p.width = fake::nccl_width(type);
    p.in_bytes = in ? count * p.width : 0;
    p.out_bytes = out ? count * p.width : 0;
    p.step = fake::nccl_step_collective;
    return p;
}

/* Input and output may be one buffer, at the place that NCCL names; otherwise they do not meet. */
static void check_overlap(const nccl_progress &p, const char *in, const char *out)
{
    const char *end_in = p.in + p.in_bytes, *end_out = p.out + p.out_bytes;

    if (in != out && p.in < end_out && p.out < end_in)
        fake::report(nullptr, "NCCL: rank %d: %s: input and output overlap", p.comm->rank,
                     fake::nccl_text(p.call).c_str());
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream)
{
    nccl_progress p = new_call("ncclAllReduce", comm, sendbuff, recvbuff, count, datatype);

    p.call.op = op;
    check_overlap(p, p.in, p.out);
    return queue(p, stream);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream)
{
    nccl_progress p = new_call("ncclReduceScatter", comm, sendbuff, recvbuff, recvcount, datatype);

    p.call.op = op;
    p.scatters = true;
    p.in_bytes *= (size_t)comm->size;
    check_overlap(p, p.in + (size_t)comm->rank * p.out_bytes, p.out);
    return queue(p, stream);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
    nccl_progress p = new_call("ncclAllGather", comm, sendbuff, recvbuff, sendcount, datatype);

    p.out_bytes *= (size_t)comm->size;
    check_overlap(p, p.in, p.out + (size_t)comm->rank * p.in_bytes);
    return queue(p, stream);
}

static void check_peer(const nccl_progress &p, int peer)
{
    if (peer < 0 || peer >= p.comm->size || peer == p.comm->rank)
        fake::report(nullptr, "NCCL: rank %d of %d: %s with rank %d", p.comm->rank, p.comm->size,
                     p.call.name, peer);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    nccl_progress p = new_call("ncclSend", comm, sendbuff, nullptr, count, datatype);

    check_peer(p, peer);
    p.peer = peer;
    p.step = fake::nccl_step_send;
    return queue(p, stream);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    nccl_progress p = new_call("ncclRecv", comm, nullptr, recvbuff, count, datatype);

    check_peer(p, peer);
    p.peer = peer;
    p.step = fake::nccl_step_recv;
    return queue(p, stream);
}
