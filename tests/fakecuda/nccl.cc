/*
 * tests/fakecuda/nccl.cc - NCCL between processes of one host. A collective is an operation of its
 * stream that ends when all ranks have made the same call; until then other streams go on. A send
 * ends when it is received: NVIDIA's library may or may not buffer it.
 *
 * All ranks must make the same calls on a communicator in the same order. If they do not, each
 * names itself and another rank, and both calls.
 */
#include <nccl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "tests/fakecuda/nccl_memory.h"
#include "tests/fakecuda/stream.h"

static_assert(ncclUint8 == 1 && ncclInt64 == 4 && ncclFloat32 == 7 && ncclFloat64 == 8 &&
                  ncclBfloat16 == 9 && ncclSum == 0 && ncclMax == 2 && ncclSystemError == 2 &&
                  ncclInvalidArgument == 4 && ncclInProgress == 7,
              "the numbers are NVIDIA's");

using fake::nccl_box;
using fake::nccl_call;
using fake::nccl_shared;

struct ncclComm {
    std::string name;
    nccl_shared *shared;
    int rank, size;
    uint64_t n_splits;
    uint64_t queued, finished; /* calls; they run one after the other */
    uint64_t parts;            /* of collectives so far */
    uint64_t sent[fake::NCCL_RANKS_MAX],
        received[fake::NCCL_RANKS_MAX]; /* calls to and from ranks */
};

/* ---- communicators ---- */

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

static ncclComm *join(const std::string &name, int rank, int size)
{
    auto *c = new ncclComm();

    c->name = name;
    c->rank = rank;
    c->size = size;
    c->shared = fake::nccl_join(name, rank, size);
    return c;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
    commId.internal[NCCL_UNIQUE_ID_BYTES - 1] = '\0';
    *comm = join(commId.internal, rank, nranks);
    return ncclSuccess;
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

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->queued != comm->finished && fake::device_failure == cudaSuccess)
        fake::report(nullptr, "NCCL: rank %d destroys a communicator that has %llu queued calls",
                     comm->rank, (unsigned long long)(comm->queued - comm->finished));
    if (comm->queued == comm->finished) {
        munmap(comm->shared, sizeof *comm->shared);
        delete comm;
    }
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    (void)comm; /* queued calls may still name it */
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

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "invalid argument";
}

const char *ncclGetLastError(ncclComm_t)
{
    return "";
}

/* ---- element types ---- */

static size_t width_of(ncclDataType_t type)
{
    switch (type) {
    case ncclUint8:
        return 1;
    case ncclBfloat16:
        return 2;
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclFloat64:
        return 8;
    default:
        fake::report(nullptr, "NCCL: the fake device has no elements of type %d", (int)type);
    }
}

static const char *name_of(int32_t type)
{
    switch (type) {
    case ncclUint8:
        return "bytes";
    case ncclBfloat16:
        return "bf16";
    case ncclFloat32:
        return "f32";
    case ncclInt64:
        return "i64";
    default:
        return "f64";
    }
}

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return f != f ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename T> static void combine_as(char *to, const char *from, size_t n, int op)
{
    T *a = (T *)to;
    const T *b = (const T *)from;

    for (size_t i = 0; i < n; i++)
        a[i] = op == ncclMax ? std::max(a[i], b[i]) : (T)(a[i] + b[i]);
}

/* to = op(to, from). A partial sum of bf16 is rounded on its way to the next rank. */
static void combine(char *to, const char *from, size_t n, int type, int op)
{
    if (type == ncclFloat32)
        combine_as<float>(to, from, n, op);
    else if (type == ncclFloat64)
        combine_as<double>(to, from, n, op);
    else if (type == ncclInt64)
        combine_as<int64_t>(to, from, n, op);
    else if (type == ncclUint8)
        combine_as<uint8_t>(to, from, n, op);
    else
        for (size_t i = 0; i < n; i++) {
            float a = from_bf16(((uint16_t *)to)[i]), b = from_bf16(((const uint16_t *)from)[i]);
            ((uint16_t *)to)[i] = to_bf16(op == ncclMax ? std::max(a, b) : a + b);
        }
}

/* ---- calls ---- */

/* One call while it runs. */
struct progress {
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
    bool has_started; /* the input counts as read */
    bool has_posted;  /* the current part */
    bool scatters;    /* the input is a part for each rank */
    bool is_done;     /* of a group, which may not be complete */
    /* Make progress. True: the call is complete. */
    bool (*step)(progress *);
};

static std::string text_of(const nccl_call &c)
{
    char text[160];

    snprintf(text, sizeof text, "%s of %llu %s%s as call %llu", c.name, (unsigned long long)c.count,
             name_of(c.type), c.op == ncclMax ? " (max)" : "", (unsigned long long)c.number);
    return text;
}

static void compare(const progress *p, int rank, const nccl_call &theirs)
{
    const nccl_call &mine = p->call;

    if (strcmp(mine.name, theirs.name) == 0 && mine.number == theirs.number &&
        mine.count == theirs.count && mine.type == theirs.type && mine.op == theirs.op)
        return;
    fake::report(nullptr, "NCCL: the ranks disagree: rank %d calls %s, and rank %d %s",
                 p->comm->rank, text_of(mine).c_str(), rank, text_of(theirs).c_str());
}

static bool all_boxes(const ncclComm *c, std::atomic<uint64_t> nccl_box::*counter, uint64_t n)
{
    for (int r = 0; r < c->size; r++)
        if (c->shared->boxes[r].*counter < n)
            return false;
    return true;
}

/* Elements of the current part: of a reduce-scatter, for each rank. */
static size_t part_of(const progress *p)
{
    size_t room = fake::NCCL_CHUNK / p->width / (size_t)(p->scatters ? p->comm->size : 1);

    return std::min(p->call.count - p->done, room);
}

static void put_part(progress *p, nccl_box *box)
{
    size_t n = part_of(p) * p->width, at = p->done * p->width;

    box->call = p->call;
    if (!p->scatters)
        memcpy(box->data, p->in + at, n);
    for (int r = 0; r < p->comm->size && p->scatters; r++)
        memcpy(box->data + (size_t)r * n, p->in + (size_t)r * p->call.count * p->width + at, n);
}

static void take_part(progress *p)
{
    nccl_box *boxes = p->comm->shared->boxes;
    size_t elements = part_of(p), n = elements * p->width, at = p->done * p->width;
    size_t from = p->scatters ? (size_t)p->comm->rank * n : 0;

    if (strcmp(p->call.name, "ncclAllGather") == 0) {
        for (int r = 0; r < p->comm->size; r++)
            memcpy(p->out + (size_t)r * p->call.count * p->width + at, boxes[r].data, n);
        return;
    }
    /* NCCL's order depends on how ranks are connected: not the order of the CPU's tree. */
    memcpy(p->out + at, boxes[p->comm->size - 1].data + from, n);
    for (int r = 0; r < p->comm->size - 1; r++)
        combine(p->out + at, boxes[r].data + from, elements, p->call.type, p->call.op);
}

static bool step_collective(progress *p)
{
    ncclComm *c = p->comm;
    nccl_box *mine = &c->shared->boxes[c->rank];

    for (;;) {
        uint64_t part = c->parts + 1;

        if (!p->has_posted) {
            if (!all_boxes(c, &nccl_box::taken, part - 1))
                return false;
            put_part(p, mine);
            mine->posted = part;
            p->has_posted = true;
        }
        for (int r = 0; r < c->size; r++)
            if (c->shared->boxes[r].posted >= part)
                compare(p, r, c->shared->boxes[r].call);
        if (!all_boxes(c, &nccl_box::posted, part))
            return false;
        take_part(p);
        p->done += part_of(p);
        p->has_posted = false;
        c->parts = part;
        mine->taken = part;
        if (p->done == p->call.count)
            return true;
    }
}

static bool step_send(progress *p)
{
    nccl_box *box = &p->comm->shared->messages[p->comm->rank][p->peer];

    while (box->posted == box->taken) {
        if (p->done == p->call.count && p->has_posted)
            return true;
        put_part(p, box);
        p->done += part_of(p);
        p->has_posted = true;
        box->posted++;
    }
    return false;
}

static bool step_recv(progress *p)
{
    nccl_box *box = &p->comm->shared->messages[p->peer][p->comm->rank];

    while (box->posted > box->taken) {
        size_t n = part_of(p);

        nccl_call theirs = box->call;
        snprintf(theirs.name, sizeof theirs.name, "ncclRecv"); /* the other side of it */
        if (memcmp(&theirs.number, &p->call.number, sizeof theirs - sizeof theirs.name) != 0) {
            snprintf(theirs.name, sizeof theirs.name, "ncclSend");
            compare(p, p->peer, theirs);
        }
        memcpy(p->out + p->done * p->width, box->data, n * p->width);
        p->done += n;
        box->taken++;
        if (p->done == p->call.count)
            return true;
    }
    return false;
}

/* ---- queuing ---- */

static void check_buffer(const progress *p, const char *side, const void *buf, size_t n)
{
    const char *begin;
    size_t size;

    if (n && (!fake::is_kind(fake::DEVICE_MEMORY, buf) ||
              !fake::memory_contains(fake::DEVICE_MEMORY, buf, n, &begin, &size)))
        fake::report(nullptr, "NCCL: rank %d: %s: the %s, %zu bytes at %p, is not device memory",
                     p->comm->rank, text_of(p->call).c_str(), side, n, buf);
}

/* The calls between ncclGroupStart and ncclGroupEnd: messages of one communicator and stream, which
 * are one of its calls and progress together. */
struct group {
    bool is_open;
    cudaStream_t stream;
    std::vector<std::shared_ptr<progress>> calls;
};
static group grouped;

static bool run_part(progress *p)
{
    if (!p->has_started && p->in_bytes)
        fake::watch_read(p->in, p->in_bytes);
    p->has_started = true;
    if (!p->step(p))
        return false;
    if (p->out_bytes)
        fake::watch_fill(p->out, p->out_bytes);
    return true;
}

static bool run_step(progress *p)
{
    if (p->comm->finished + 1 != p->number)
        return false; /* an earlier call of the communicator, on another stream */
    if (!run_part(p))
        return false;
    p->comm->finished++;
    return true;
}

/* All calls of a group, in any order. */
static bool run_group(std::vector<std::shared_ptr<progress>> *calls)
{
    ncclComm *comm = (*calls)[0]->comm;
    bool is_done = true;

    if (comm->finished + 1 != (*calls)[0]->number)
        return false;
    for (auto &p : *calls) {
        p->is_done = p->is_done || run_part(p.get());
        is_done = is_done && p->is_done;
    }
    comm->finished += is_done;
    return is_done;
}

/* Append a line for the call, and the elements that it was given, to the file FAKECUDA_CALLS. One
 * write, because ranks share the file. */
static void record(const progress *p)
{
    const char *path = getenv("FAKECUDA_CALLS");
    char line[160];
    int fd, n;

    if (!path || (fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) < 0)
        return;
    n = snprintf(line, sizeof line, "%s %s %llu %d\n", p->call.name, name_of(p->call.type),
                 (unsigned long long)p->call.count, p->comm->size);
    if (write(fd, line, (size_t)n) != n)
        fake::report(nullptr, "NCCL: %s cannot be written", path);
    close(fd);
}

static void add_to_group(const std::shared_ptr<progress> &p, cudaStream_t stream)
{
    if (p->step == step_collective)
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

ncclResult_t ncclGroupEnd(void)
{
    auto calls = std::make_shared<std::vector<std::shared_ptr<progress>>>(grouped.calls);

    if (!grouped.is_open)
        fake::report(nullptr, "NCCL: ncclGroupEnd without ncclGroupStart");
    grouped.is_open = false;
    grouped.calls.clear();
    if (!calls->empty())
        fake::api_enqueue_steps(grouped.stream, "group of messages",
                                [=] { return run_group(calls.get()); });
    return ncclSuccess;
}

static ncclResult_t queue(const progress &made, cudaStream_t stream)
{
    auto p = std::make_shared<progress>(made);

    record(p.get());

    if (!grouped.is_open || grouped.calls.empty())
        p->comm->queued++;
    p->number = p->comm->queued;
    if (!p->call.number)
        p->call.number = p->number;
    check_buffer(p.get(), "input", p->in, p->in_bytes);
    check_buffer(p.get(), "output", p->out, p->out_bytes);
    if (grouped.is_open) {
        add_to_group(p, stream);
        return ncclSuccess;
    }
    fake::api_enqueue_steps(stream, made.name, [=] { return run_step(p.get()); });
    return ncclSuccess;
}

static progress new_call(const char *name, ncclComm_t comm, const void *in, void *out, size_t count,
                         ncclDataType_t type)
{
    progress p = {};

    p.name = name;
    p.comm = comm;
    snprintf(p.call.name, sizeof p.call.name, "%s", name);
    p.call.count = count;
    p.call.type = type;
    p.in = (const char *)in;
    p.out = (char *)out;
    p.width = width_of(type);
    p.in_bytes = in ? count * p.width : 0;
    p.out_bytes = out ? count * p.width : 0;
    p.step = step_collective;
    return p;
}

/* Input and output may be one buffer, at the place that NCCL names; otherwise they do not meet. */
static void check_overlap(const progress &p, const char *in, const char *out)
{
    const char *end_in = p.in + p.in_bytes, *end_out = p.out + p.out_bytes;

    if (in != out && p.in < end_out && p.out < end_in)
        fake::report(nullptr, "NCCL: rank %d: %s: input and output overlap", p.comm->rank,
                     text_of(p.call).c_str());
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream)
{
    progress p = new_call("ncclAllReduce", comm, sendbuff, recvbuff, count, datatype);

    p.call.op = op;
    check_overlap(p, p.in, p.out);
    return queue(p, stream);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream)
{
    progress p = new_call("ncclReduceScatter", comm, sendbuff, recvbuff, recvcount, datatype);

    p.call.op = op;
    p.scatters = true;
    p.in_bytes *= (size_t)comm->size;
    check_overlap(p, p.in + (size_t)comm->rank * p.out_bytes, p.out);
    return queue(p, stream);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
    progress p = new_call("ncclAllGather", comm, sendbuff, recvbuff, sendcount, datatype);

    p.out_bytes *= (size_t)comm->size;
    check_overlap(p, p.in, p.out + (size_t)comm->rank * p.in_bytes);
    return queue(p, stream);
}

static void check_peer(const progress &p, int peer)
{
    if (peer < 0 || peer >= p.comm->size || peer == p.comm->rank)
        fake::report(nullptr, "NCCL: rank %d of %d: %s with rank %d", p.comm->rank, p.comm->size,
                     p.call.name, peer);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    progress p = new_call("ncclSend", comm, sendbuff, nullptr, count, datatype);

    check_peer(p, peer);
    p.peer = peer;
    p.call.number = ++comm->sent[peer];
    p.step = step_send;
    return queue(p, stream);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    progress p = new_call("ncclRecv", comm, nullptr, recvbuff, count, datatype);

    check_peer(p, peer);
    p.peer = peer;
    p.call.number = ++comm->received[peer];
    p.step = step_recv;
    return queue(p, stream);
}
