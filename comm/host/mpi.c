/* comm/host/mpi.c - see comm/host/mpi.h. */
#include "comm/host/mpi.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/host/mpi_collective.h"
#include "comm/host/mpi_group.h"
#include "comm/host/mpi_mail.h"
#include "comm/host/shm.h"
#include "device/cpu/pages.h"

/* process->impl */
struct mpi_process {
    struct shm_job *job; /* of the ranks on this host; NULL: they do not share memory */
    int host_limit;      /* the most ranks that count as one host */
    int host_rank;
    int host;             /* the first rank of the host; without a job, a unique number < 0 */
    struct pages *memory; /* of alloc, without a job */
};

/* ---- groups ---- */

/* If all ranks of g, which uses MPI, share memory, use the memory instead. Collective. */
static tp_status share_host(struct host_group *g, struct tp_err *err)
{
    struct mpi_process *p = g->process->impl;
    struct mpi_group *m = g->impl;
    int span[2] = { p->host, -p->host }, least[2];
    struct shm_group *shared = NULL;

    MPI_TRY(MPI_Allreduce(span, least, 2, MPI_INT, MPI_MIN, m->comm));
    if (least[0] != -least[1] || least[0] < 0)
        return TP_OK;
    if (g->rank == 0)
        shared = shm_group_take(p->job, g->size);
    MPI_TRY(MPI_Bcast(&shared, sizeof shared, MPI_BYTE, 0, m->comm));
    if (!shared)
        return TP_OK;
    mpi_group_close(g);
    return shm_group_open(g, p->job, shared, p->host_rank, err);
}

static tp_status mpi_split(struct host_group *out, struct host_group *g, const int *members,
                           int n_members, struct tp_err *err);

static const struct host_group_ops MPI_GROUP = {
    .split = mpi_split,
    .free = mpi_group_close,
    .all_reduce = mpi_all_reduce,
    .all_gather = mpi_all_gather,
    .all_to_all = mpi_all_to_all,
    .reduce_scatter = mpi_reduce_scatter,
    .broadcast = mpi_broadcast,
    .gather = mpi_gather,
    .send = mpi_send,
    .wait = mpi_wait,
    .recv = mpi_recv,
    .barrier = mpi_barrier,
};

static tp_status mpi_split(struct host_group *out, struct host_group *g, const int *members,
                           int n_members, struct tp_err *err)
{
    struct mpi_group *m = g->impl;
    MPI_Comm mine;
    tp_status st;

    (void)n_members;
    MPI_TRY(MPI_Comm_split(m->comm, out ? members[0] : MPI_UNDEFINED, out ? out->rank : 0, &mine));
    if (!out)
        return TP_OK;
    out->ops = &MPI_GROUP;
    if (!(st = mpi_group_open(out, mine, err)))
        st = share_host(out, err);
    return st;
}

/* ---- the ranks of a host ---- */

struct mpi_invitation {
    struct shm_job *job; /* NULL: none was made */
    int64_t total_bytes;
    pid_t maker;
    int fd;
};

/* Create or map the host's job. *ok: all its ranks have it, with arenas of at least local_bytes. */
static tp_status open_job(struct host_group *g, MPI_Comm host, int64_t local_bytes, int *ok,
                          struct tp_err *err)
{
    struct mpi_process *p = g->process->impl;
    struct mpi_invitation invitation = { .fd = -1, .maker = getpid() };
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

static tp_status share_memory(struct host_group *g, MPI_Comm host, int64_t local_bytes,
                              struct tp_err *err)
{
    struct mpi_process *p = g->process->impl;
    int ok = 0, first = g->rank, size;
    tp_status st;

    MPI_TRY(MPI_Comm_size(host, &size));
    MPI_TRY(MPI_Bcast(&first, 1, MPI_INT, 0, host));
    if (size > 1 && (st = open_job(g, host, local_bytes, &ok, err)))
        return st;
    if (p->job && !ok) {
        shm_job_unmap(p->job);
        p->job = NULL;
    }
    p->host = p->job ? first : -1 - g->rank;
    return TP_OK;
}

static tp_status find_host(struct host_group *g, int64_t local_bytes, struct tp_err *err)
{
    struct mpi_process *p = g->process->impl;
    MPI_Comm machine, host;
    tp_status st;

    MPI_TRY(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, g->rank, MPI_INFO_NULL,
                                &machine));
    MPI_TRY(MPI_Comm_size(machine, &g->process->local_size));
    MPI_TRY(MPI_Comm_rank(machine, &g->process->local_rank));
    MPI_TRY(MPI_Comm_rank(machine, &p->host_rank));
    MPI_TRY(MPI_Comm_split(machine, p->host_rank / p->host_limit, p->host_rank, &host));
    MPI_TRY(MPI_Comm_rank(host, &p->host_rank));
    st = share_memory(g, host, local_bytes, err);
    MPI_Comm_free(&host);
    MPI_Comm_free(&machine);
    return st;
}

/* ---- the process ---- */

static void process_abort(struct host_process *p, int code)
{
    (void)p;
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void process_end(struct host_process *process)
{
    struct mpi_process *p = process->impl;

    process->groups->ops->free(process->groups);
    MPI_Finalize();
    if (p->job)
        shm_job_unmap(p->job);
    pages_unmap_all(&p->memory);
    free(p);
}

static tp_status process_alloc(struct host_process *process, void **out, int64_t n_bytes,
                               struct tp_err *err)
{
    struct mpi_process *p = process->impl;

    if (p->job)
        return shm_job_alloc(out, p->job, p->host_rank, n_bytes, err);
    return pages_map(&p->memory, out, n_bytes, err);
}

static const struct host_process_ops MPI_PROCESS = { process_abort, process_end, process_alloc,
                                                     NULL };

static tp_status start(struct host_group *g, const struct comm_env *env, int64_t local_bytes,
                       struct tp_err *err)
{
    struct host_process *process = g->process;
    struct mpi_process *p;
    tp_status st;

    MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Comm_rank(MPI_COMM_WORLD, &process->rank));
    MPI_TRY(MPI_Comm_size(MPI_COMM_WORLD, &process->size));
    g->rank = process->rank;
    g->size = process->size;
    if (env->mpi_size > 0 && g->size != env->mpi_size)
        return tp_fail(err, TP_E_COMM,
                       "%d ranks were started, and MPI knows of %d: under Slurm use srun "
                       "--mpi=pmix, elsewhere the mpirun of the Open MPI this was built with",
                       env->mpi_size, g->size);
    if (!(process->impl = p = calloc(1, sizeof *p)))
        return tp_fail(err, TP_E_NOMEM, "out of memory for a group of ranks");
    p->host_limit =
        env->host_ranks > 0 && env->host_ranks < SHM_RANKS_MAX ? env->host_ranks : SHM_RANKS_MAX;
    g->ops = &MPI_GROUP;
    if ((st = mpi_group_open(g, MPI_COMM_WORLD, err)) || (st = find_host(g, local_bytes, err)))
        return st;
    st = share_host(g, err);
    if (!st && g->ops != &MPI_GROUP) /* every group shares memory, so none calls MPI */
        process->threads = true;
    return st;
}

tp_status mpi_process_open(struct host_process *p, struct host_group *all,
                           const struct comm_env *env, int64_t local_bytes, struct tp_err *err)
{
    int level = 0;
    tp_status st;

    /* threads let collectives overlap with computing */
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
        return tp_fail(err, TP_E_COMM, "MPI_Init_thread failed");
    p->ops = &MPI_PROCESS;
    p->threads = level == MPI_THREAD_MULTIPLE;
    st = start(all, env, local_bytes, err);
    if (st) { /* MPI is not used any more, because the process is about to end */
        MPI_Finalize();
        free(p->impl);
    }
    return st;
}

#ifdef TP_SANITIZE
/* In place of libc's: MPI's plugins stay loaded until the process ends. LeakSanitizer then knows by
 * the caller of malloc that the memory is theirs, and does not need whole stacks, which cost more
 * than all else. */
int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
#endif
