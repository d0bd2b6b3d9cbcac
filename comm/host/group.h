/*
 * comm/host/group.h - groups of ranks that exchange host memory. Control messages and the
 * collectives of the CPU device use them. Only comm/ uses this.
 *
 * One table has three implementations: self (one rank), shm (ranks of one host: shared memory and
 * futexes, so that waiting ranks sleep), mpi (between hosts). A group may differ from its process:
 * a group of one rank is always `self`, and ranks of one host share memory even if MPI started
 * them.
 *
 * Every call blocks. All ranks of a group make the same calls in the same order, one at a time. All
 * implementations sum along the tree of kernels/cpu/tree_reduce.h.
 */
#ifndef COMM_HOST_GROUP_H
#define COMM_HOST_GROUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "kernels/cpu/tree_reduce.h"
#include "layout/dtype.h"

struct host_group;
struct host_process;

/* A message that was sent and may not have arrived yet; all zero: there is none. */
struct host_request {
    bool pending;
    int to;
    uint64_t end; /* shm: the message's number */
    void *parts;  /* mpi: its pieces */
};

/* Functions of a process. */
struct host_process_ops {
    /* This rank fails alone: end the others. code: this process's exit code. Need not return. */
    void (*abort)(struct host_process *p, int code);
    void (*end)(struct host_process *p);
    /* Allocate memory that groups reach without copies: zeroed, aligned to 4096 bytes. `end` frees
     * it. */
    tp_status (*alloc)(struct host_process *p, void **out, int64_t n_bytes, struct tp_err *err);
    /* This rank's main thread begins or ends to wait for a queue's thread. The launcher looks for
     * blocked ranks. NULL: not needed. */
    void (*waits)(struct host_process *p, bool waits);
};

/* This process among the ranks. */
struct host_process {
    const struct host_process_ops *ops;
    void *impl;
    int rank, size;
    int local_rank, local_size; /* local: on this host */
    bool threads;               /* groups may be used by several threads at once */
    bool agreed;                /* all ranks know about a failure, so all of them end */
    struct host_group *groups;  /* linked by next; the last has every rank */
};

/* Rows of an all-to-all: [size + 1] offsets each. */
struct host_rows {
    int64_t row_bytes;
    const int32_t *send, *recv;
};

/* Functions of a group. */
struct host_group_ops {
    /* Fill out->impl and out->ops for the group of `members` (ranks of g in their new order; two or
     * more). Collective over g: a rank that is alone or has no color calls it with out = NULL. */
    tp_status (*split)(struct host_group *out, struct host_group *g, const int *members,
                       int n_members, struct tp_err *err);
    void (*free)(struct host_group *g); /* free g->impl */

    /* In place: buf[i] = op over ranks of buf[i]. */
    tp_status (*all_reduce)(struct host_group *g, void *buf, int64_t n, enum dtype type,
                            enum tree_reduce_op op, struct tp_err *err);
    /* Copy rank r's `in` to out + r * n_bytes. in may be out + rank * n_bytes. */
    tp_status (*all_gather)(struct host_group *g, void *out, const void *in, int64_t n_bytes,
                            struct tp_err *err);
    /* out[i] = sum over ranks of in[rank * n + i]. out may be in + rank * n. */
    tp_status (*reduce_scatter)(struct host_group *g, void *out, const void *in, int64_t n,
                                enum dtype type, struct tp_err *err);
    /* Send the rows of `in` to the ranks (struct comm_rows of comm/collective.h). `in` is memory of
     * alloc. TP_E_INTERNAL: a pair does not agree on its number of rows (shm; mpi does not
     * compare them). */
    tp_status (*all_to_all)(struct host_group *g, void *out, const void *in,
                            const struct host_rows *rows, struct tp_err *err);
    tp_status (*broadcast)(struct host_group *g, void *buf, int64_t n_bytes, int root,
                           struct tp_err *err);
    /* Copy every rank's bytes to rank 0, in rank order; sizes may differ. On rank 0 *out is
     * malloc'ed and sizes[size] is filled; elsewhere *out = NULL. TP_E_NOMEM everywhere when rank 0
     * has too little memory. */
    tp_status (*gather)(struct host_group *g, const void *in, int64_t n_bytes, void **out,
                        int64_t *sizes, struct tp_err *err);
    /* Does not wait for the receiver: buf, which is memory of alloc, must not change until wait. */
    tp_status (*send)(struct host_group *g, const void *buf, int64_t n_bytes, int to,
                      struct host_request *r, struct tp_err *err);
    tp_status (*wait)(struct host_group *g, struct host_request *r, struct tp_err *err);
    /* Messages of a pair arrive in order. TP_E_INTERNAL: the sizes differ; mpi: TP_E_COMM for one
     * that is too long. */
    tp_status (*recv)(struct host_group *g, void *buf, int64_t n_bytes, int from,
                      struct tp_err *err);
    tp_status (*barrier)(struct host_group *g, struct tp_err *err);
};

struct host_group {
    const struct host_group_ops *ops;
    void *impl;
    struct host_process *process;
    struct host_group *next;
    int rank, size;
    bool on_thread;   /* a queue's thread makes the current call */
    atomic_bool busy; /* a call is in progress */
};

#endif
