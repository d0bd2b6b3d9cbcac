/*
 * comm/host/shm_collective.h - the collectives of a group that shares memory; comm/host/group.h
 * says what each does. Only comm/host/ uses this.
 */
#ifndef COMM_HOST_SHM_COLLECTIVE_H
#define COMM_HOST_SHM_COLLECTIVE_H

#include "comm/host/group.h"

tp_status shm_all_reduce(struct host_group *g, void *buf, int64_t n, enum dtype type,
                         enum tree_reduce_op op, struct tp_err *err);
tp_status shm_all_gather(struct host_group *g, void *out, const void *in, int64_t n_bytes,
                         struct tp_err *err);
tp_status shm_all_to_all(struct host_group *g, void *out, const void *in,
                         const struct host_rows *rows, struct tp_err *err);
tp_status shm_reduce_scatter(struct host_group *g, void *out, const void *in, int64_t n,
                             enum dtype type, struct tp_err *err);
tp_status shm_broadcast(struct host_group *g, void *buf, int64_t n_bytes, int root,
                        struct tp_err *err);
tp_status shm_gather(struct host_group *g, const void *in, int64_t n_bytes, void **out,
                     int64_t *sizes, struct tp_err *err);
tp_status shm_barrier(struct host_group *g, struct tp_err *err);

#endif
