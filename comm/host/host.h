/*
 * comm/host/host.h - this process among the ranks, and the groups of ranks that exchange host
 * memory. Only comm/ uses this.
 */
#ifndef COMM_HOST_HOST_H
#define COMM_HOST_HOST_H

#include "comm/env.h"
#include "comm/host/group.h"

/* Join the ranks that env describes. local_bytes: the most memory that ops->alloc will return.
 * TP_E_NOMEM: there is less. TP_E_COMM: MPI fails, or its number of ranks differs from env's. */
tp_status host_open(struct host_process **out, const struct comm_env *env, int64_t local_bytes,
                    struct tp_err *err);

/* Leave the job and free all groups. Collective. abort: a failure that the other ranks do not know
 * of; this ends them instead of waiting for them. */
void host_close(struct host_process *p, tp_status abort);

/* The group of all ranks. */
struct host_group *host_all(const struct host_process *p);

/* Ranks with the same color form a new group, ordered by key, then rank. Collective over g. A rank
 * with a color < 0 gets none (*out = NULL). Freed by host_free, which does not wait for other
 * ranks, or by host_close. */
tp_status host_split(struct host_group **out, struct host_group *g, int color, int key,
                     struct tp_err *err);
void host_free(struct host_group *g);

/* Call these before and after each call on g. on_thread: a queue's thread makes it.
 * TP_E_INTERNAL: another call is in progress. */
tp_status host_begin(struct host_group *g, bool on_thread, struct tp_err *err);
void host_end(struct host_group *g);

#endif
