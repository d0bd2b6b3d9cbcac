/*
 * comm/mpi_world.c - a process that mpirun or srun started, and the memory of its host.
 *
 * Messages between ranks of one host cost MPI two copies and a wait that spins. So the ranks of a
 * host map a job of comm/shm.h together, and every communicator within a host uses that; only those
 * that span hosts use MPI. Where the mapping cannot be made (other containers, limits), all use
 * MPI.
 */
#include "comm/mpi_world.h"

#include <stdlib.h>
#include <unistd.h>

/* At most so many neighbouring ranks are taken for one host; 1: none share memory. For tests. */
static int host_limit(void)
{
    const char *text = getenv("TP_HOST_RANKS");
    long n = text ? strtol(text, NULL, 10) : 0;

    return n > 0 && n < SHM_RANKS_MAX ? (int)n : SHM_RANKS_MAX;
}

tp_status mpi_share_host(struct comm *c, struct tp_err *err)
{
    struct mpi_process *p = c->world->process;
    struct mpi_comm *m = c->impl;
    int span[2] = { p->host, -p->host }, least[2];
    struct shm_group *g = NULL;
    tp_status st;

    MPI_TRY(MPI_Allreduce(span, least, 2, MPI_INT, MPI_MIN, m->comm));
    if (least[0] != -least[1] || least[0] < 0)
        return TP_OK;
    if (c->rank == 0)
        g = shm_group_take(p->job, c->size);
    MPI_TRY(MPI_Bcast(&g, sizeof g, MPI_BYTE, 0, m->comm));
    if (!g)
        return TP_OK;
    comm_mpi_ops.free(c);
    if ((st = shm_attach(c, p->job, g, p->host_rank, err)))
        c->impl = NULL;
    return st;
}

struct invitation {
    struct shm_job *job; /* NULL: none was made */
    int64_t total_bytes;
    pid_t maker;
    int fd;
};

/* Make or join the host's job; *ok: this rank has it, with arenas of local_bytes at least. */
static tp_status meet_job(struct comm *c, MPI_Comm host, int64_t local_bytes, int *ok,
                          struct tp_err *err)
{
    struct mpi_process *p = c->process;
    struct invitation invitation = { .fd = -1, .maker = getpid() };
    int mine, size;

    MPI_TRY(MPI_Comm_size(host, &size));
    if (p->host_rank == 0) {
        shm_job_make_file(&p->job, &invitation.fd, size);
        if (p->job) {
            invitation.job = p->job;
            invitation.total_bytes = p->job->total_bytes;
        }
    }
    MPI_TRY(MPI_Bcast(&invitation, sizeof invitation, MPI_BYTE, 0, host));
    if (p->host_rank != 0 && invitation.job)
        shm_job_join(&p->job, invitation.maker, invitation.fd, invitation.job,
                     invitation.total_bytes);
    mine = p->job && p->job->arena_bytes >= local_bytes;
    MPI_TRY(MPI_Allreduce(&mine, ok, 1, MPI_INT, MPI_MIN, host));
    if (p->host_rank == 0 && invitation.job)
        close(invitation.fd);
    return TP_OK;
}

static tp_status share_memory(struct comm *c, MPI_Comm host, int64_t local_bytes,
                              struct tp_err *err)
{
    struct mpi_process *p = c->process;
    int ok = 0, first = c->rank, size;
    tp_status st;

    MPI_TRY(MPI_Comm_size(host, &size));
    MPI_TRY(MPI_Bcast(&first, 1, MPI_INT, 0, host));
    if (size > 1 && (st = meet_job(c, host, local_bytes, &ok, err)))
        return st;
    if (p->job && !ok) {
        shm_job_unmap(p->job);
        p->job = NULL;
    }
    p->host = p->job ? first : -1 - c->rank;
    return TP_OK;
}

static tp_status find_host(struct comm *c, int64_t local_bytes, struct tp_err *err)
{
    struct mpi_process *p = c->process;
    MPI_Comm machine, host;
    tp_status st;

    MPI_TRY(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL,
                                &machine));
    MPI_TRY(MPI_Comm_size(machine, &c->local_size));
    MPI_TRY(MPI_Comm_rank(machine, &p->host_rank));
    MPI_TRY(MPI_Comm_split(machine, p->host_rank / host_limit(), p->host_rank, &host));
    MPI_TRY(MPI_Comm_rank(host, &p->host_rank));
    st = share_memory(c, host, local_bytes, err);
    MPI_Comm_free(&host);
    MPI_Comm_free(&machine);
    return st;
}

static void way_abort(struct comm *world, int code)
{
    (void)world;
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void way_end(struct comm *world)
{
    struct mpi_process *p = world->process;

    world->ops->free(world);
    MPI_Finalize();
    if (p->job)
        shm_job_unmap(p->job);
    comm_memory_free(p->memory);
    free(p);
}

static tp_status way_alloc(void **out, struct comm *world, int64_t n_bytes, struct tp_err *err)
{
    struct mpi_process *p = world->process;

    if (p->job)
        return shm_alloc(out, p->job, p->host_rank, n_bytes, err);
    return comm_memory_add(out, &p->memory, n_bytes, err);
}

static const struct comm_transport mpi_way = { way_abort, way_end, way_alloc, NULL };

static tp_status start(struct comm *c, int expected_size, bool threads, int64_t local_bytes,
                       struct tp_err *err)
{
    struct mpi_process *p;
    tp_status st;

    MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Comm_rank(MPI_COMM_WORLD, &c->rank));
    MPI_TRY(MPI_Comm_size(MPI_COMM_WORLD, &c->size));
    if (expected_size > 0 && c->size != expected_size)
        return tp_fail(err, TP_E_COMM,
                       "%d ranks were started, and MPI knows of %d: under Slurm use srun "
                       "--mpi=pmix, elsewhere the mpirun of the Open MPI this was built with",
                       expected_size, c->size);
    if (!(c->process = p = calloc(1, sizeof *p)))
        return tp_fail(err, TP_E_NOMEM, "out of memory for a communicator");
    p->threads = threads;
    if ((st = mpi_attach(c, MPI_COMM_WORLD, err)) || (st = find_host(c, local_bytes, err)))
        return st;
    return mpi_share_host(c, err);
}

tp_status comm_mpi_init(struct comm *world, int expected_size, int64_t local_bytes,
                        struct tp_err *err)
{
    int level = 0;
    tp_status st;

    /* A rank that waits gives its core to one that works; the user's own setting stays. */
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    /* for collectives in the background; where it gives less there are none */
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
        return tp_fail(err, TP_E_COMM, "MPI_Init_thread failed");
    world->way = &mpi_way;
    st = start(world, expected_size, level == MPI_THREAD_MULTIPLE, local_bytes, err);
    if (st) { /* nothing of world is used any more; the process is about to end */
        MPI_Finalize();
        free(world->process);
    }
    return st;
}
