/*
 * comm/host/shm_job.h - the memory that the ranks of one host share. Only comm/ uses this.
 *
 * It is one mapping at the same address in each rank, so pointers may be stored in it. The launcher
 * maps anonymous memory before it forks the ranks. If mpirun has started the ranks, they map a file
 * in memory at an address that they agree on.
 *
 *     struct shm_job: the ranks, and which groups are in use
 *     n_groups times: struct shm_group and the arrays after it, for one group of ranks
 *     n_ranks times: an arena of arena_bytes, for shm_job_alloc
 *
 * The mapping only reserves address space: a page uses memory after it is first touched.
 */
#ifndef COMM_HOST_SHM_JOB_H
#define COMM_HOST_SHM_JOB_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/host/futex.h"
#include "core/err.h"

enum {
    SHM_RANKS_MAX = 256,
    SHM_GROUPS_MAX = 4096,
    SHM_SLOT_BYTES = 256 << 10, /* a rank's part of a staged message */
    SHM_MESSAGES_MAX = 64,      /* of one rank to another that may be pending; a power of two */
};

enum shm_state {
    SHM_STARTED,
    SHM_IN_WORLD, /* after comm_open */
    SHM_ENDED,    /* after comm_close, with success or a failure that all have agreed on */
    SHM_FAILED,   /* after comm_close, with a failure of this rank alone */
};

struct shm_rank {
    _Alignas(64) struct futex_sleep sleep; /* of its main thread */
    struct futex_sleep thread_sleep;       /* of its queue's thread */
    _Atomic bool waits_for_thread;         /* its main thread waits for that thread */
    _Atomic int state;                     /* enum shm_state */
    _Atomic pid_t pid;
    int64_t arena_used; /* by shm_job_alloc */
};

/* The call that a rank is about to make. The others check that they make the same call, and find
 * its buffer here. */
struct shm_post {
    _Alignas(64) int32_t call; /* enum shm_call */
    int32_t kind;              /* type and op, or root: must be equal */
    int64_t n_bytes;           /* must be equal, except in a gather */
    const char *shared;        /* the buffer, if others can reach it, else NULL */
};

/* A message: its receiver copies from the sender's buffer. */
struct shm_message {
    const char *at;
    int64_t n_bytes;
};

/* Messages from one rank to another. The words count the messages sent and copied, modulo 2^32. */
struct shm_ring {
    struct futex_word sent, copied;
};

struct shm_group {
    struct futex_word phase; /* of the barrier: counts its completions */
    _Alignas(64) _Atomic int32_t arrived;
    _Atomic int32_t members_left; /* the last member that leaves frees the group */
    int32_t size;
    /* struct shm_post[2][n_ranks], struct shm_ring[n_ranks^2], slots, messages: see shm_job.c */
};

struct shm_job {
    uint64_t magic;
    int32_t n_ranks, n_groups;
    int32_t spins; /* how often a waiter spins before it sleeps */
    int64_t group_bytes, arena_bytes, total_bytes;
    _Atomic int32_t group_used[SHM_GROUPS_MAX];
    struct shm_rank ranks[SHM_RANKS_MAX];
};

/* Launcher: map a job. TP_E_USAGE: too many ranks. */
tp_status shm_job_make(struct shm_job **out, int n_ranks, struct tp_err *err);

/* For ranks that launch_ranks did not start: the first rank of a host creates the job in a file in
 * memory, at an address that is free in most processes. The others map it at the same address. *out
 * stays NULL if that is impossible. Close *fd when all have mapped it. */
void shm_job_make_file(struct shm_job **out, int *fd, int n_ranks);
void shm_job_join(struct shm_job **out, pid_t maker, int fd, const struct shm_job *address,
                  int64_t total_bytes);

void shm_job_unmap(struct shm_job *job);

/* The group of all ranks. */
struct shm_group *shm_job_all(struct shm_job *job);

/* Take a free group for `size` members, reset; NULL: all are in use. */
struct shm_group *shm_group_take(struct shm_job *job, int size);
void shm_group_leave(struct shm_job *job, struct shm_group *g);

/* Parts of a group; parity is 0 or 1. */
struct shm_post *shm_group_post(const struct shm_job *job, struct shm_group *g, int parity,
                                int rank);
char *shm_group_slot(const struct shm_job *job, struct shm_group *g, int parity, int rank);
struct shm_ring *shm_group_ring(const struct shm_job *job, struct shm_group *g, int from, int to);
struct shm_message *shm_group_messages(const struct shm_job *job, struct shm_group *g, int from,
                                       int to);

/* Whether the rank sleeps on a word that has not changed: its main thread, or the queue's thread
 * for which the main thread waits. */
bool shm_job_is_blocked(const struct shm_job *job, int rank);

/* Whether n_bytes at p are inside a rank's arena. */
bool shm_job_in_arena(const struct shm_job *job, const void *p, int64_t n_bytes);

/* Allocate n_bytes of the rank's arena, in whole pages. TP_E_NOMEM: less is free. */
tp_status shm_job_alloc(void **out, struct shm_job *job, int rank, int64_t n_bytes,
                        struct tp_err *err);

#endif
