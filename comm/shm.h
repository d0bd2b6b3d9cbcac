/*
 * comm/shm.h - the memory that the ranks of one launcher share; inside comm/ only.
 *
 * One mapping, at the same address in each rank: an anonymous one, made before the ranks are
 * forked; or, where mpirun has started them, a file in memory that all map at an address agreed on.
 *
 *     struct shm_job                                the ranks, and which groups are in use
 *     n_groups times: struct shm_group, rings, slots    what one communicator needs
 *     n_ranks times: an arena of arena_bytes            what comm_alloc gives
 *
 * It is address space only: a page takes memory when it is first touched. Pointers may be stored in
 * it. Forked ranks find it through the environment (SHM_ENV), checked against a memfd that does not
 * outlive an exec, so that a program that a rank starts does not take itself for that rank.
 */
#ifndef COMM_SHM_H
#define COMM_SHM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/backend.h"
#include "comm/futex.h"

#define SHM_ENV "TP_RANK_OF_JOB" /* "<rank> <descriptor of the job's card>" */

enum {
    SHM_RANKS_MAX = 256,
    SHM_GROUPS_MAX = 4096,
    SHM_SLOT_BYTES = 256 << 10, /* a rank's part of a staged message */
    SHM_RING_BYTES = 128 << 10, /* under way from one rank to another; a power of two */
};

enum shm_state {
    SHM_STARTED,
    SHM_IN_WORLD, /* after comm_init */
    SHM_ENDED,    /* after comm_end, for success or an end that all have agreed on */
    SHM_FAILED,   /* after comm_end, for a failure of its own */
};

struct shm_rank {
    _Alignas(64) struct shm_sleep sleep;
    struct shm_sleep behind; /* the same of its background thread */
    _Atomic bool finishing;  /* it waits for that thread */
    _Atomic int state;       /* enum shm_state */
    _Atomic pid_t pid;
    int64_t arena_used; /* by comm_alloc */
};

/* What a rank is about to do, so that the others see its buffer, and that they agree. */
struct shm_post {
    _Alignas(64) int32_t call; /* enum comm_call; COMM_CALLS: a split */
    int32_t kind;              /* type and op, or root: must be equal */
    int64_t n_bytes;           /* must be equal but for COMM_GATHER */
    const char *shared;        /* the buffer where others can reach it, else NULL */
};

/* Bytes from one rank to another: written and read count bytes, modulo 2^32. */
struct shm_ring {
    struct shm_word written, read;
};

struct shm_group {
    struct shm_word phase; /* of the barrier: counts its completions */
    _Alignas(64) _Atomic int32_t arrived;
    _Atomic int32_t members_left; /* the last to free gives the group back */
    int32_t size;
    /* struct shm_post[2][n_ranks], struct shm_ring[n_ranks^2], ring bytes, slots: see shm_job.c */
};

struct shm_job {
    uint64_t magic;
    int32_t n_ranks, n_groups;
    int32_t spins; /* of a waiter before it sleeps */
    int64_t group_bytes, arena_bytes, total_bytes;
    _Atomic int32_t group_used[SHM_GROUPS_MAX];
    struct shm_rank ranks[SHM_RANKS_MAX];
};

/* Launcher: map a job and make its card, *card_fd. TP_E_USAGE: too many ranks. */
tp_status shm_job_make(struct shm_job **out, int *card_fd, int n_ranks, struct tp_err *err);

/* Ranks that somebody else started: the first of a host makes the job in a file in memory, at an
 * address that is free in most processes, and the others map it there too (*out stays NULL where
 * that cannot be done; *fd is to be closed when all have). */
void shm_job_make_file(struct shm_job **out, int *fd, int n_ranks);
void shm_job_join(struct shm_job **out, pid_t maker, int fd, const struct shm_job *address,
                  int64_t total_bytes);

void shm_job_unmap(struct shm_job *job);

/* Rank: write and read SHM_ENV. *out is NULL when this process is no rank. */
tp_status shm_job_announce(int rank, int card_fd, struct tp_err *err);
void shm_job_find(struct shm_job **out, int *rank);

/* The world's group. */
struct shm_group *shm_group_world(struct shm_job *job);

/* A free group for `size` members, reset; NULL when all are taken. */
struct shm_group *shm_group_take(struct shm_job *job, int size);
void shm_group_leave(struct shm_job *job, struct shm_group *g);

/* Parts of a group; parity is 0 or 1. */
struct shm_post *shm_group_post(const struct shm_job *job, struct shm_group *g, int parity,
                                int rank);
char *shm_group_slot(const struct shm_job *job, struct shm_group *g, int parity, int rank);
struct shm_ring *shm_group_ring(const struct shm_job *job, struct shm_group *g, int from, int to);
char *shm_group_ring_bytes(const struct shm_job *job, struct shm_group *g, int from, int to);

/* Whether rank sleeps, waiting for a word that has not changed, itself or by its background thread.
 */
bool shm_is_blocked(const struct shm_job *job, int rank);

/* Where rank's arena begins, and whether n_bytes at p lie in any arena. */
char *shm_arena(const struct shm_job *job, int rank);
bool shm_in_arena(const struct shm_job *job, const void *p, int64_t n_bytes);

/* n_bytes of rank's arena. TP_E_NOMEM: less is left. */
tp_status shm_alloc(void **out, struct shm_job *job, int rank, int64_t n_bytes, struct tp_err *err);

/* A rank's handle of a communicator: comm->impl. */
struct shm_comm {
    struct shm_job *job;
    struct shm_group *group;
    int host_rank; /* of the job's ranks */
    int parity;    /* of the next post and slots: alternates, see shm.c */
};

/* Make c a communicator of group g: fills c->ops and c->impl. */
tp_status shm_attach(struct comm *c, struct shm_job *job, struct shm_group *g, int host_rank,
                     struct tp_err *err);
extern const struct comm_ops comm_shm_ops;

/* comm/shm_mail.c */
tp_status shm_send(struct comm *c, const void *buf, int64_t n_bytes, int to, struct tp_err *err);
tp_status shm_recv(struct comm *c, void *buf, int64_t n_bytes, int from, struct tp_err *err);
tp_status shm_mail_post(struct comm *c, const void *buf, int64_t n_bytes, int to,
                        struct comm_request *ticket, struct tp_err *err);
tp_status shm_mail_wait(struct comm *c, struct comm_request *ticket, struct tp_err *err);

#endif
