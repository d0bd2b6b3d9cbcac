/* comm/shm_world.c - the world of ranks that launch_ranks made. */
#include <stdlib.h>

#include "comm/backend.h"
#include "comm/shm.h"

static void shm_abort(struct comm *world, int code)
{
    struct shm_job *job = world->process;

    (void)code; /* the launcher sees the exit code, and ends the others */
    job->ranks[world->rank].state = SHM_FAILED;
}

static void shm_end(struct comm *world)
{
    struct shm_job *job = world->process;

    if (job->ranks[world->rank].state == SHM_IN_WORLD)
        job->ranks[world->rank].state = SHM_ENDED;
    comm_shm_ops.free(world);
    shm_job_unmap(job);
}

static tp_status shm_world_alloc(void **out, struct comm *world, int64_t n_bytes,
                                 struct tp_err *err)
{
    return shm_alloc(out, world->process, world->rank, n_bytes, err);
}

static void shm_finishing(struct comm *world, bool waits)
{
    struct shm_job *job = world->process;

    job->ranks[world->rank].finishing = waits;
}

static const struct comm_transport shm_way = { shm_abort, shm_end, shm_world_alloc, shm_finishing };

tp_status comm_shm_init(struct comm *world, int64_t local_bytes, bool *is_rank, struct tp_err *err)
{
    struct shm_job *job;
    int rank;
    tp_status st;

    shm_job_find(&job, &rank);
    *is_rank = job != NULL;
    if (!job)
        return TP_OK;
    if (local_bytes > job->arena_bytes)
        return tp_fail(
            err, TP_E_NOMEM,
            "rank %d needs %lld bytes of address space for shared memory, and the system "
            "gave %lld (ulimit -v?)",
            rank, (long long)local_bytes, (long long)job->arena_bytes);
    if ((st = shm_attach(world, job, shm_group_world(job), rank, err)))
        return st;
    world->way = &shm_way;
    world->process = job;
    world->rank = rank;
    world->size = world->local_size = job->n_ranks;
    job->ranks[rank].state = SHM_IN_WORLD;
    return TP_OK;
}
