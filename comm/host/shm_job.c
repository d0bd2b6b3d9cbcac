/* comm/host/shm_job.c - see comm/host/shm_job.h. */
#include "comm/host/shm_job.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHM_MAGIC UINT64_C(0x74702d72616e6b73) /* "tp-ranks" */

enum { HUGE_BYTES = 2 << 20 };

/* Linux puts programs and libraries far from this address, and the sanitizers do not use it. */
#define FILE_ADDRESS ((void *)UINT64_C(0x200000000000))

static const int64_t ARENA_MAX_BYTES = INT64_C(64) << 30;
static const int64_t ARENA_MIN_BYTES = INT64_C(64) << 20;

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static int64_t posts_bytes(int64_t n_ranks)
{
    return 2 * n_ranks * (int64_t)sizeof(struct shm_post);
}

static int64_t rings_bytes(int64_t n_ranks)
{
    return n_ranks * n_ranks * (int64_t)sizeof(struct shm_ring);
}

/* Offsets in a group. */
static int64_t rings_at(int64_t n_ranks)
{
    return round_up((int64_t)sizeof(struct shm_group) + posts_bytes(n_ranks), 4096);
}

static int64_t slots_at(int64_t n_ranks)
{
    return round_up(rings_at(n_ranks) + rings_bytes(n_ranks), 4096);
}

static int64_t messages_at(int64_t n_ranks)
{
    return slots_at(n_ranks) + 2 * n_ranks * SHM_SLOT_BYTES;
}

static int64_t messages_bytes(int64_t n_ranks)
{
    return round_up(n_ranks * n_ranks * SHM_MESSAGES_MAX * (int64_t)sizeof(struct shm_message),
                    4096);
}

static int64_t groups_at(void)
{
    return round_up((int64_t)sizeof(struct shm_job), 4096);
}

static int64_t arenas_at(const struct shm_job *job)
{
    return round_up(groups_at() + job->n_groups * job->group_bytes, HUGE_BYTES);
}

/* Where the rank's arena begins. */
static char *arena_of(const struct shm_job *job, int rank)
{
    return (char *)job + arenas_at(job) + rank * job->arena_bytes;
}

/* Every axis of a mesh, and every pair of axes, splits the ranks into at most n groups. */
static int groups_for(int n_ranks)
{
    int n = 64 + 16 * n_ranks;

    return n < SHM_GROUPS_MAX ? n : SHM_GROUPS_MAX;
}

static int spins_for(int n_ranks)
{
    cpu_set_t cores;
    int n_cores = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);

    return n_ranks <= n_cores ? 300 : 0;
}

static struct shm_job plan_job(int n_ranks)
{
    return (struct shm_job){
        .magic = SHM_MAGIC,
        .n_ranks = n_ranks,
        .n_groups = groups_for(n_ranks),
        .spins = spins_for(n_ranks),
        .group_bytes = messages_at(n_ranks) + messages_bytes(n_ranks),
    };
}

/* Map the job with the largest arenas that the system's limits allow. fd < 0: anonymous memory.
 * NULL: see errno. */
static struct shm_job *map_job(struct shm_job *plan, int fd, void *address)
{
    int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : MAP_FIXED_NOREPLACE);

    for (int64_t arena = ARENA_MAX_BYTES; arena >= ARENA_MIN_BYTES; arena /= 2) {
        void *p;

        plan->arena_bytes = arena;
        plan->total_bytes = arenas_at(plan) + plan->n_ranks * arena;
        if (fd >= 0 && ftruncate(fd, plan->total_bytes))
            continue;
        p = mmap(address, (size_t)plan->total_bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
        if (p != MAP_FAILED)
            return p;
    }
    return NULL;
}

/* Fill in a new mapping, which is all zero. */
static void begin_job(struct shm_job *job, const struct shm_job *plan)
{
    job->magic = plan->magic;
    job->n_ranks = plan->n_ranks;
    job->n_groups = plan->n_groups;
    job->spins = plan->spins;
    job->group_bytes = plan->group_bytes;
    job->arena_bytes = plan->arena_bytes;
    job->total_bytes = plan->total_bytes;
    shm_group_take(job, plan->n_ranks); /* the first group has all ranks */
}

/* Large pages make large buffers faster. A core dump must not contain this memory. */
static void advise_job(struct shm_job *job)
{
    madvise(job, (size_t)job->total_bytes, MADV_DONTDUMP);
    madvise(arena_of(job, 0), (size_t)(job->n_ranks * job->arena_bytes), MADV_HUGEPAGE);
}

/* A rank that is alone shares its arena with nobody. Systems give large pages to private memory
 * more often than to shared memory, and then its first access costs a fraction. A failure costs
 * speed alone: the arena stays until there is memory for its place. */
static void make_private(struct shm_job *job)
{
    const size_t n = (size_t)job->arena_bytes;
    void *p;

    if (job->n_ranks > 1)
        return;
    p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p != MAP_FAILED &&
        mremap(p, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, arena_of(job, 0)) == MAP_FAILED)
        munmap(p, n);
}

tp_status shm_job_make(struct shm_job **out, int n_ranks, struct tp_err *err)
{
    struct shm_job *job, plan;

    if (n_ranks < 1 || n_ranks > SHM_RANKS_MAX)
        return tp_fail(err, TP_E_USAGE,
                       "%d ranks on one host: 1 to %d can be started here, more with mpirun",
                       n_ranks, SHM_RANKS_MAX);
    plan = plan_job(n_ranks);
    job = map_job(&plan, -1, NULL);
    if (!job)
        return tp_fail_errno(err, "no address space for %d ranks (ulimit -v?): mmap of %lld bytes",
                             n_ranks, (long long)plan.total_bytes);
    begin_job(job, &plan);
    make_private(job);
    advise_job(job);
    *out = job;
    return TP_OK;
}

void shm_job_make_file(struct shm_job **out, int *fd, int n_ranks)
{
    struct shm_job plan = plan_job(n_ranks);
    struct rlimit limit;

    *out = NULL;
    /* The kernel kills a process that exceeds a limit on the size of files. */
    if (n_ranks > SHM_RANKS_MAX || getrlimit(RLIMIT_FSIZE, &limit) ||
        limit.rlim_cur != RLIM_INFINITY)
        return;
    *fd = memfd_create("tp-ranks", MFD_CLOEXEC);
    if (*fd < 0)
        return;
    *out = map_job(&plan, *fd, FILE_ADDRESS);
    if (!*out) {
        close(*fd);
        return;
    }
    begin_job(*out, &plan);
    advise_job(*out);
}

void shm_job_join(struct shm_job **out, pid_t maker, int fd, const struct shm_job *address,
                  int64_t total_bytes)
{
    char path[64];
    void *p;
    int own;

    *out = NULL;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)maker, fd);
    own = open(path, O_RDWR | O_CLOEXEC);
    if (own < 0)
        return;
    p = mmap((void *)(uintptr_t)address, (size_t)total_bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, own, 0);
    close(own);
    if (p == MAP_FAILED)
        return;
    *out = p;
    if (p != address || (*out)->magic != SHM_MAGIC || (*out)->total_bytes != total_bytes) {
        munmap(p, (size_t)total_bytes);
        *out = NULL;
        return;
    }
    advise_job(*out);
}

void shm_job_unmap(struct shm_job *job)
{
    munmap(job, (size_t)job->total_bytes);
}

static struct shm_group *group_at(struct shm_job *job, int i)
{
    return (struct shm_group *)((char *)job + groups_at() + i * job->group_bytes);
}

struct shm_group *shm_job_all(struct shm_job *job)
{
    return group_at(job, 0);
}

struct shm_group *shm_group_take(struct shm_job *job, int size)
{
    for (int i = 0; i < job->n_groups; i++) {
        struct shm_group *g = group_at(job, i);
        int32_t free_mark = 0;

        if (!atomic_compare_exchange_strong(&job->group_used[i], &free_mark, 1))
            continue;
        memset(g, 0, sizeof *g);
        memset(shm_group_ring(job, g, 0, 0), 0, (size_t)rings_bytes(size));
        g->size = size;
        g->members_left = size;
        return g;
    }
    return NULL;
}

void shm_group_leave(struct shm_job *job, struct shm_group *g)
{
    int64_t i = ((char *)g - (char *)group_at(job, 0)) / job->group_bytes;

    if (atomic_fetch_sub(&g->members_left, 1) == 1)
        atomic_store(&job->group_used[i], 0);
}

struct shm_post *shm_group_post(const struct shm_job *job, struct shm_group *g, int parity,
                                int rank)
{
    return (struct shm_post *)(g + 1) + parity * job->n_ranks + rank;
}

char *shm_group_slot(const struct shm_job *job, struct shm_group *g, int parity, int rank)
{
    return (char *)g + slots_at(job->n_ranks) +
           ((int64_t)parity * job->n_ranks + rank) * SHM_SLOT_BYTES;
}

struct shm_ring *shm_group_ring(const struct shm_job *job, struct shm_group *g, int from, int to)
{
    return (struct shm_ring *)((char *)g + rings_at(job->n_ranks)) + from * g->size + to;
}

struct shm_message *shm_group_messages(const struct shm_job *job, struct shm_group *g, int from,
                                       int to)
{
    struct shm_message *first = (struct shm_message *)((char *)g + messages_at(job->n_ranks));

    return first + ((int64_t)from * g->size + to) * SHM_MESSAGES_MAX;
}

bool shm_job_in_arena(const struct shm_job *job, const void *p, int64_t n_bytes)
{
    uintptr_t lo = (uintptr_t)arena_of(job, 0), at = (uintptr_t)p;
    uintptr_t hi = (uintptr_t)job + (uintptr_t)job->total_bytes;

    return at >= lo && at <= hi && (uintptr_t)n_bytes <= hi - at;
}

static bool sleeps(const struct shm_job *job, const struct futex_sleep *sleep)
{
    struct futex_word *w = atomic_load(&sleep->word);

    /* A faulty rank may have written anywhere before it died. */
    if ((uintptr_t)w <= (uintptr_t)job ||
        (uintptr_t)w >= (uintptr_t)job + (uintptr_t)job->total_bytes)
        return false;
    return atomic_load(&w->value) == atomic_load(&sleep->value);
}

bool shm_job_is_blocked(const struct shm_job *job, int rank)
{
    const struct shm_rank *r = &job->ranks[rank];

    return sleeps(job, &r->sleep) || (r->waits_for_thread && sleeps(job, &r->thread_sleep));
}

tp_status shm_job_alloc(void **out, struct shm_job *job, int rank, int64_t n_bytes,
                        struct tp_err *err)
{
    int64_t *used = &job->ranks[rank].arena_used, left = job->arena_bytes - *used;

    if (n_bytes > left)
        return tp_fail(err, TP_E_NOMEM,
                       "%lld bytes of shared memory do not fit the %lld that are left of rank %d's "
                       "%lld (a limit on address space, ulimit -v, makes it small)",
                       (long long)n_bytes, (long long)left, rank, (long long)job->arena_bytes);
    *out = arena_of(job, rank) + *used;
    *used += round_up(n_bytes, 4096);
    return TP_OK;
}
