/* comm/host/shm.c - see comm/host/shm.h. */
#include "comm/host/shm.h"

#include <stdlib.h>
#include <string.h>

#include "comm/host/shm_collective.h"
#include "comm/host/shm_mail.h"
#include "comm/host/shm_member.h"

/* ---- groups ---- */

/* The first member takes a group of the job and sends its place to the others. */
static tp_status shm_split(struct host_group *out, struct host_group *g, const int *members,
                           int n_members, struct tp_err *err)
{
    struct shm_member *s = g->impl;
    struct shm_group *taken = NULL;
    int parity = shm_member_turn(g);
    bool first = out && out->rank == 0, lacking = false;
    struct shm_post mine = { .call = SHM_CALL_SPLIT };

    if (first && !(taken = shm_group_take(s->job, n_members)))
        mine.kind = 1;
    memcpy(shm_member_slot(g, parity, g->rank), &taken, sizeof taken);
    if (out && shm_group_open(out, s->job, NULL, s->host_rank, err))
        mine.kind = 2;
    *shm_member_post(g, parity, g->rank) = mine;
    shm_member_barrier(g);
    for (int r = 0; r < g->size; r++)
        lacking = lacking || shm_member_post(g, parity, r)->kind;
    if (lacking) {
        if (taken) {
            taken->members_left = 1;
            shm_group_leave(s->job, taken);
        }
        if (out)
            free(out->impl);
        return tp_fail(err, TP_E_NOMEM, "no memory for a group of ranks (%d can exist at a time)",
                       s->job->n_groups);
    }
    if (out)
        memcpy(&((struct shm_member *)out->impl)->group, shm_member_slot(g, parity, members[0]),
               sizeof taken);
    return TP_OK;
}

static void shm_free(struct host_group *g)
{
    struct shm_member *s = g->impl;

    shm_group_leave(s->job, s->group);
    free(s);
}

static const struct host_group_ops SHM_GROUP = {
    .split = shm_split,
    .free = shm_free,
    .all_reduce = shm_all_reduce,
    .all_gather = shm_all_gather,
    .all_to_all = shm_all_to_all,
    .reduce_scatter = shm_reduce_scatter,
    .broadcast = shm_broadcast,
    .gather = shm_gather,
    .send = shm_send,
    .wait = shm_wait,
    .recv = shm_recv,
    .barrier = shm_barrier,
};

tp_status shm_group_open(struct host_group *g, struct shm_job *job, struct shm_group *shared,
                         int host_rank, struct tp_err *err)
{
    struct shm_member *s = calloc(1, sizeof *s);

    if (!s)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a group of ranks");
    s->job = job;
    s->group = shared;
    s->host_rank = host_rank;
    g->impl = s;
    g->ops = &SHM_GROUP;
    return TP_OK;
}

/* ---- the process ---- */

static void shm_abort(struct host_process *p, int code)
{
    struct shm_job *job = p->impl;

    (void)code; /* the launcher sees the exit code and ends the others */
    job->ranks[p->rank].state = SHM_FAILED;
}

static void shm_end(struct host_process *p)
{
    struct shm_job *job = p->impl;

    if (job->ranks[p->rank].state == SHM_IN_WORLD)
        job->ranks[p->rank].state = SHM_ENDED;
    shm_free(p->groups);
    shm_job_unmap(job);
}

static tp_status shm_alloc(struct host_process *p, void **out, int64_t n_bytes, struct tp_err *err)
{
    return shm_job_alloc(out, p->impl, p->rank, n_bytes, err);
}

static void shm_waits(struct host_process *p, bool waits)
{
    struct shm_job *job = p->impl;

    job->ranks[p->rank].waits_for_thread = waits;
}

static const struct host_process_ops SHM_PROCESS = { shm_abort, shm_end, shm_alloc, shm_waits };

tp_status shm_process_open(struct host_process *p, struct host_group *all,
                           const struct comm_launched *r, int64_t local_bytes, struct tp_err *err)
{
    struct shm_job *job = r->job;
    tp_status st;

    if (local_bytes > job->arena_bytes)
        return tp_fail(
            err, TP_E_NOMEM,
            "rank %d needs %lld bytes of address space for shared memory, and the system "
            "gave %lld (ulimit -v?)",
            r->rank, (long long)local_bytes, (long long)job->arena_bytes);
    if ((st = shm_group_open(all, job, shm_job_all(job), r->rank, err)))
        return st;
    p->ops = &SHM_PROCESS;
    p->impl = job;
    p->rank = r->rank;
    p->size = p->local_size = job->n_ranks;
    p->local_rank = p->rank;
    p->threads = true;
    job->ranks[r->rank].state = SHM_IN_WORLD;
    return TP_OK;
}
