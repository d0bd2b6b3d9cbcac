/* tests/fakecuda/nccl_progress.cc - see tests/fakecuda/nccl_progress.h. */
#include "tests/fakecuda/nccl_progress.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "tests/fakecuda/nccl_element.h"
#include "tests/fakecuda/stream.h"

namespace fake
{

std::string nccl_text(const nccl_call &c)
{
    char text[160];

    snprintf(text, sizeof text, "%s of %llu %s%s as call %llu%s", c.name,
             (unsigned long long)c.count, nccl_type_name(c.type), c.op == ncclMax ? " (max)" : "",
             (unsigned long long)c.number, c.in_graph ? " in a graph" : "");
    return text;
}

static void compare(const nccl_progress *p, int rank, const nccl_call &theirs)
{
    const nccl_call &mine = p->call;

    if (strcmp(mine.name, theirs.name) == 0 && mine.number == theirs.number &&
        mine.count == theirs.count && mine.type == theirs.type && mine.op == theirs.op &&
        mine.in_graph == theirs.in_graph)
        return;
    report(nullptr, "NCCL: the ranks disagree: rank %d calls %s, and rank %d %s", p->comm->rank,
           nccl_text(mine).c_str(), rank, nccl_text(theirs).c_str());
}

static bool all_boxes(const ncclComm *c, std::atomic<uint64_t> nccl_box::*counter, uint64_t n)
{
    for (int r = 0; r < c->size; r++)
        if (c->shared->boxes[r].*counter < n)
            return false;
    return true;
}

/* Elements of the current part: of a reduce-scatter, for each rank. */
static size_t part_of(const nccl_progress *p)
{
    size_t room = NCCL_CHUNK / p->width / (size_t)(p->scatters ? p->comm->size : 1);

    return std::min(p->call.count - p->done, room);
}

static void put_part(nccl_progress *p, nccl_box *box)
{
    size_t n = part_of(p) * p->width, at = p->done * p->width;
    memory_open open;

    box->call = p->call;
    if (!p->scatters)
        memcpy(box->data, p->in + at, n);
    for (int r = 0; r < p->comm->size && p->scatters; r++)
        memcpy(box->data + (size_t)r * n, p->in + (size_t)r * p->call.count * p->width + at, n);
}

static void take_part(nccl_progress *p)
{
    nccl_box *boxes = p->comm->shared->boxes;
    size_t elements = part_of(p), n = elements * p->width, at = p->done * p->width;
    size_t from = p->scatters ? (size_t)p->comm->rank * n : 0;
    memory_open open;

    if (strcmp(p->call.name, "ncclAllGather") == 0) {
        for (int r = 0; r < p->comm->size; r++)
            memcpy(p->out + (size_t)r * p->call.count * p->width + at, boxes[r].data, n);
        return;
    }
    /* NCCL's order depends on how ranks are connected: not the order of the CPU's tree. */
    memcpy(p->out + at, boxes[p->comm->size - 1].data + from, n);
    for (int r = 0; r < p->comm->size - 1; r++)
        nccl_combine(p->out + at, boxes[r].data + from, elements, p->call.type, p->call.op);
}

bool nccl_step_collective(nccl_progress *p)
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

bool nccl_step_send(nccl_progress *p)
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

bool nccl_step_recv(nccl_progress *p)
{
    nccl_box *box = &p->comm->shared->messages[p->peer][p->comm->rank];

    while (box->posted > box->taken) {
        size_t n = part_of(p);
        memory_open open;

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

} // namespace fake
