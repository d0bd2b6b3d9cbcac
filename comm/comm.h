/*
 * comm/comm.h - collectives between ranks, and a count of what was sent.
 *
 * Three ways to have ranks, one interface: self (one rank), shm (ranks of one host, started by our
 * own launcher, shared memory and futexes: waiting ranks sleep, they do not spin), mpi (started by
 * mpirun or srun). Sums are always taken along one binary tree over the ranks (comm/reduce.h:
 * neighbours first, then pairs of pairs), so a result does not depend on timing and is the same on
 * every rank, and a rank that adds 2^k neighbouring terms itself leaves the bits as they are.
 *
 * A collective is called by every rank of the communicator, in the same order, from one thread.
 * Buffers are borrowed. When a rank is gone the others get TP_E_COMM or are ended by the launcher.
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/heartbeat.h"

struct comm;

enum comm_type { COMM_F32, COMM_F64, COMM_I64 };
enum comm_op { COMM_SUM, COMM_MAX };

/* What is counted; an index of comm_counts. */
enum comm_call {
    COMM_ALL_REDUCE,
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_BROADCAST,
    COMM_GATHER,
    COMM_SEND,
    COMM_RECV,
    COMM_BARRIER,
    COMM_CALLS,
};

struct comm_counts {
    int64_t calls[COMM_CALLS];
    int64_t bytes[COMM_CALLS]; /* payload a call was given on this rank: n * size of an element */
};

/* The world of this process: by what launch_ranks has left, or by the environment of mpirun or srun
 * (launch_is_mpi); else one rank. Call once. `local_bytes` is the address space that comm_alloc
 * will need on a rank (the launcher has reserved 64 GiB, or less under ulimit -v, and touched none
 * of it). TP_E_NOMEM: less is left than that. TP_E_COMM: MPI fails, or knows of other ranks than
 * the environment does. */
tp_status comm_init(struct comm **world, int64_t local_bytes, struct tp_err *err);

/* End: collective; frees the world, what was split from it, and all that comm_alloc gave. After an
 * error pass abort = the status, once its sentence is printed: the other ranks are brought down
 * rather than waited for (under MPI this does not return), unless all have agreed on the error by
 * comm_agree over the world. TP_E_STOPPED and TP_E_NO are ends like TP_OK. */
void comm_end(struct comm *world, tp_status abort);

int comm_rank(const struct comm *c);
int comm_size(const struct comm *c);

/* From now on tell a watcher when a collective of any communicator begins and ends. t is borrowed
 * until the world ends; NULL: nobody watches. */
void comm_watch(struct comm *world, struct heartbeat *t);

/* Ranks on this rank's host, for the default number of threads. */
int comm_local_size(const struct comm *c);

/* Ranks with the same color form a new communicator, ordered by key, then rank. Collective over c.
 * A color < 0 gets none (*out = NULL). Freed by comm_free, which waits for no other rank (all that
 * is sent on it must have been received), or with the world. */
tp_status comm_split(struct comm **out, struct comm *c, int color, int key, struct tp_err *err);
void comm_free(struct comm *c);

/* Memory that collectives of any communicator reach without copies (where the way has such, else
 * plain memory): 64-byte aligned, zeroed. Collective over c, the same n_bytes on every rank.
 * Lives until the world ends. */
tp_status comm_alloc(void **out, struct comm *c, int64_t n_bytes, struct tp_err *err);

/* In place: buf[i] = op over ranks of buf[i]. */
tp_status comm_all_reduce(struct comm *c, void *buf, int64_t n, enum comm_type type,
                          enum comm_op op, struct tp_err *err);

/* out[r * n + i] = rank r's in[i]. in may be out + rank * n. */
tp_status comm_all_gather(struct comm *c, void *out, const void *in, int64_t n, enum comm_type type,
                          struct tp_err *err);

/* out[i] = sum over ranks of in[rank * n + i]; in holds size * n elements. out may be
 * in + rank * n. */
tp_status comm_reduce_scatter(struct comm *c, void *out, const void *in, int64_t n,
                              enum comm_type type, struct tp_err *err);

/* n_bytes of the root's buf to everyone. */
tp_status comm_broadcast(struct comm *c, void *buf, int64_t n_bytes, int root, struct tp_err *err);

/* Every rank's bytes to rank 0, concatenated in rank order; sizes may differ. On rank 0 *out is
 * malloc'ed (the caller frees) and sizes[size] is filled; elsewhere *out = NULL and sizes is not
 * used. TP_E_NOMEM on every rank when rank 0 has no room. */
tp_status comm_gather(struct comm *c, const void *in, int64_t n_bytes, void **out, int64_t *sizes,
                      struct tp_err *err);

/* Blocking point-to-point, matched in order for each pair; both sides know the size. Up to 64 KiB
 * a send does not wait for its receiver, if no other message to it is under way. TP_E_INTERNAL: the
 * sizes differ. */
tp_status comm_send(struct comm *c, const void *buf, int64_t n_bytes, int to, struct tp_err *err);
tp_status comm_recv(struct comm *c, void *buf, int64_t n_bytes, int from, struct tp_err *err);

/* Send without waiting: buf, which comm_alloc gave, stays as it is until comm_wait. Posts and sends
 * to one rank arrive in order; a ticket of zeroes has nothing to wait for. */
struct comm_request {
    bool pending;
    int to;
    uint32_t end;   /* shm: where the message ends in the ring */
    void *requests; /* mpi */
};
tp_status comm_post(struct comm *c, const void *buf, int64_t n_bytes, int to,
                    struct comm_request *ticket, struct tp_err *err);

/* Until the receiver has what was posted. */
tp_status comm_wait(struct comm *c, struct comm_request *ticket, struct tp_err *err);

tp_status comm_barrier(struct comm *c, struct tp_err *err);

/* ---- in the background ----
 *
 * The same collectives, done by one thread of this process while the caller goes on: same sums,
 * same counts (when they are started). It runs them one after the other in the order in which they
 * were started, on whatever communicator, and sleeps while it waits; so ranks start jobs of
 * communicators that they share in the same order. Buffers are of comm_alloc, and nobody's but the
 * job's until comm_finish. While a communicator has jobs that are not finished, nothing else may be
 * called on it (TP_E_INTERNAL). Nothing is allocated by a call; the thread begins with the first
 * job and ends in comm_end. Where comm_overlaps says no, comm_start_* itself does the work before
 * it returns. */
struct comm_work {
    struct comm *comm; /* NULL: nothing was started, or it is finished */
    uint64_t number;
};

tp_status comm_start_all_reduce(struct comm *c, void *buf, int64_t n, enum comm_type type,
                                enum comm_op op, struct comm_work *job, struct tp_err *err);
tp_status comm_start_all_gather(struct comm *c, void *out, const void *in, int64_t n,
                                enum comm_type type, struct comm_work *job, struct tp_err *err);
tp_status comm_start_reduce_scatter(struct comm *c, void *out, const void *in, int64_t n,
                                    enum comm_type type, struct comm_work *job, struct tp_err *err);

/* Until the job is done; nothing for a job of zeroes. In any order. After a failure every job of
 * this rank fails. */
tp_status comm_finish(struct comm *c, struct comm_work *job, struct tp_err *err);

/* Whether jobs on c are done while the caller goes on: c has several ranks, and where it is MPI
 * that moves their data, that allows threads (MPI_THREAD_MULTIPLE). */
bool comm_overlaps(const struct comm *c);

/* Seconds so far: that this rank's callers were inside collectives and comm_finish; that its thread
 * was inside jobs while nobody waited for one. */
struct comm_times {
    double waited, hidden;
};
struct comm_times comm_times(const struct comm *world);

/* Agree on a status: if any rank passes a failure, every rank gets the failure of the lowest such
 * rank, its message included ("rank 3: ..." is put before it elsewhere). */
tp_status comm_agree(struct comm *c, tp_status st, struct tp_err *err);

/* What was called on c since it was made. Borrowed; the collectives inside comm_agree count. */
const struct comm_counts *comm_counts(const struct comm *c);

#endif
