/* tests/fakecuda/nccl_connect.cc - see tests/fakecuda/nccl_connect.h. */
#include "tests/fakecuda/nccl_connect.h"

#include <cstdio>
#include <ctime>

#include "tests/fakecuda/api.h"

namespace fake
{

/* This rank's side of a pair. */
static std::atomic<bool> *own_side(const nccl_progress *p)
{
    nccl_shared *s = p->comm->shared;

    return p->step == nccl_step_send ? &s->sends[p->comm->rank][p->peer]
                                     : &s->receives[p->peer][p->comm->rank];
}

static bool has_peer(const nccl_progress *p)
{
    const nccl_shared *s = p->comm->shared;

    return p->step == nccl_step_send ? s->receives[p->comm->rank][p->peer]
                                     : s->sends[p->peer][p->comm->rank];
}

static bool have_all_called(const ncclComm *c)
{
    for (int r = 0; r < c->size; r++)
        if (!c->shared->calls[r])
            return false;
    return true;
}

static bool is_connected(const nccl_progress *p)
{
    return p->step == nccl_step_collective ? have_all_called(p->comm) : has_peer(p);
}

[[noreturn]] static void report_waiting(const nccl_progress *p)
{
    if (p->step == nccl_step_collective)
        report(nullptr,
               "NCCL: rank %d waits for ever in its first collective of a communicator, %s, for "
               "which all its ranks connect",
               p->comm->rank, p->name);
    report(nullptr,
           "NCCL: rank %d waits for ever in its first %s with rank %d, which has not made its side "
           "of the connection",
           p->comm->rank, p->name, p->peer);
}

void nccl_connect(const std::vector<const nccl_progress *> &calls)
{
    const struct timespec t = { 0, 100000 };
    double waited = 0;

    for (const nccl_progress *p : calls)
        *(p->step == nccl_step_collective ? &p->comm->shared->calls[p->comm->rank] : own_side(p)) =
            true;
    for (const nccl_progress *p : calls)
        for (; !is_connected(p); waited += 1e-4) {
            if (waited > patience())
                report_waiting(p);
            api_go_on();
            nanosleep(&t, nullptr);
        }
}

} // namespace fake
