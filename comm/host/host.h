/*
 * comm/host/host.h - this process among the ranks, and the groups of ranks that exchange host
 * memory. Inside comm/.
 */
#ifndef COMM_HOST_HOST_H
#define COMM_HOST_HOST_H

#include "comm/env.h"
#include "comm/host/group.h"

/* Join the ranks that env describes. local_bytes: the memory that ops->alloc will give at most.
 * TP_E_NOMEM: there is less. TP_E_COMM: MPI fails, or knows of other ranks than env does. */
tp_status host_open(struct host_process **out, const struct comm_env *env, int64_t local_bytes,
                    struct tp_err *err);

/* End: collective. Frees all groups. abort: a failure that the other ranks do not know of; they are
 * brought down rather than waited for. */
void host_close(struct host_process *p, tp_status abort);

/* The group of all ranks. */
struct host_group *host_all(const struct host_process *p);

/* Ranks with the same color form a new group, ordered by key, then rank. Collective over g. A color
 * < 0 gets none (*out = NULL). Freed by host_free, which waits for no other rank, or at the end. */
tp_status host_split(struct host_group **out, struct host_group *g, int color, int key,
                     struct tp_err *err);
void host_free(struct host_group *g);

/* A call on g begins, made by a queue's thread or not; TP_E_INTERNAL: another one is under way. */
tp_status host_begin(struct host_group *g, bool on_thread, struct tp_err *err);
void host_end(struct host_group *g);

#endif
