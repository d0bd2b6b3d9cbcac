/*
 * comm/backend.h - what a way to have ranks (self, shm, mpi) provides; inside comm/ only.
 *
 * comm.c checks arguments, counts, and calls these. Every back end sums with comm/reduce.h. A
 * communicator need not be of the same kind as its world: one rank alone is `self`, and the ranks
 * of one host share memory also where MPI has started them.
 */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/comm.h"

/* What concerns the whole process. */
struct comm_transport {
    /* This rank fails alone: bring the others down. code is this process's exit code. Need not
     * return. */
    void (*abort)(struct comm *world, int code);
    void (*end)(struct comm *world);
    /* This rank's part of comm_alloc; not collective. */
    tp_status (*alloc)(void **out, struct comm *world, int64_t n_bytes, struct tp_err *err);
    /* From now on this rank's caller waits for its background thread, or does no more: for whoever
     * looks for ranks that are blocked. NULL: nobody does. */
    void (*finishing)(struct comm *world, bool waits);
};

/* What a communicator does. */
struct comm_ops {
    /* Fill out->impl for the communicator of `members` (ranks of c in their new order; two or
     * more). Collective over c: a rank that is alone or has no color calls it with out = NULL. */
    tp_status (*split)(struct comm *out, struct comm *c, const int *members, int n_members,
                       struct tp_err *err);
    void (*free)(struct comm *c); /* of c->impl; not for the world */

    tp_status (*all_reduce)(struct comm *c, void *buf, int64_t n, enum comm_type type,
                            enum comm_op op, struct tp_err *err);
    tp_status (*all_gather)(struct comm *c, void *out, const void *in, int64_t n_bytes,
                            struct tp_err *err);
    tp_status (*reduce_scatter)(struct comm *c, void *out, const void *in, int64_t n,
                                enum comm_type type, struct tp_err *err);
    tp_status (*broadcast)(struct comm *c, void *buf, int64_t n_bytes, int root,
                           struct tp_err *err);
    tp_status (*gather)(struct comm *c, const void *in, int64_t n_bytes, void **out, int64_t *sizes,
                        struct tp_err *err);
    tp_status (*send)(struct comm *c, const void *buf, int64_t n_bytes, int to, struct tp_err *err);
    tp_status (*recv)(struct comm *c, void *buf, int64_t n_bytes, int from, struct tp_err *err);
    tp_status (*post)(struct comm *c, const void *buf, int64_t n_bytes, int to,
                      struct comm_request *ticket, struct tp_err *err);
    tp_status (*wait)(struct comm *c, struct comm_request *ticket, struct tp_err *err);
    tp_status (*barrier)(struct comm *c, struct tp_err *err);
};

struct comm {
    const struct comm_ops *ops;
    void *impl;                       /* of ops */
    const struct comm_transport *way; /* of the world */
    void *process;                    /* of way */
    int rank, size, local_size;
    bool
        agreed; /* of the world: all ranks know of a failure (comm_agree), so all come to the end */
    struct comm_counts counts;
    bool overlaps;             /* its collectives may be run by another thread than the caller's */
    bool behind;               /* has jobs, so it is the background thread that is at work on it */
    int n_jobs;                /* not finished */
    struct comm *world, *next; /* the world has a list of what was split from it */

    /* of the world alone */
    struct heartbeat *tell;             /* who watches this rank, or NULL; borrowed */
    struct comm_background *background; /* NULL until the first job */
    double entered, waited;             /* when the caller's collective began; seconds in all */
};

/* A call begins: refuse it where jobs are open, count it, tell who watches. */
tp_status comm_enter(struct comm *c, enum comm_call call, int64_t n_bytes, struct tp_err *err);

/* It is over; returns st. */
tp_status comm_leave(struct comm *c, tp_status st);

/* comm/background.c: end the thread of the world, if there is one. false: a job is under way that
 * will never end, and so are its memory and the thread. */
bool comm_background_end(struct comm *world, bool failed);

/* Fill all of world. comm_shm_init sets *is_rank to false, and does
 * nothing else, where launch_ranks did not make this process. */
void comm_self_init(struct comm *world);
tp_status comm_shm_init(struct comm *world, int64_t local_bytes, bool *is_rank, struct tp_err *err);
tp_status comm_mpi_init(struct comm *world, int expected_size, int64_t local_bytes,
                        struct tp_err *err);

/* Every communicator of one rank, the world or not, uses these. */
extern const struct comm_ops comm_self_ops;

/* Zeroed memory in a list that is given back as a whole: comm_alloc of self and mpi. */
struct comm_memory;
tp_status comm_memory_add(void **out, struct comm_memory **list, int64_t n_bytes,
                          struct tp_err *err);
void comm_memory_free(struct comm_memory *list);

/* Bytes of an element. */
static inline int64_t comm_type_bytes(enum comm_type type)
{
    return type == COMM_F32 ? 4 : 8;
}

#endif
