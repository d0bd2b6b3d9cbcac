/*
 * comm/host/mpi_collective.h - the collectives of ranks that do not share memory, over MPI;
 * comm/host/group.h says what each does. Only comm/host/ uses this.
 */
#ifndef COMM_HOST_MPI_COLLECTIVE_H
#define COMM_HOST_MPI_COLLECTIVE_H

#include "comm/host/group.h"

tp_status mpi_all_reduce(struct host_group *g, void *buf, int64_t n, enum dtype type,
                         enum tree_reduce_op op, struct tp_err *err);
tp_status mpi_all_gather(struct host_group *g, void *out, const void *in, int64_t n_bytes,
                         struct tp_err *err);
tp_status mpi_all_to_all(struct host_group *g, void *out, const void *in,
                         const struct host_rows *rows, struct tp_err *err);
tp_status mpi_reduce_scatter(struct host_group *g, void *out, const void *in, int64_t n,
                             enum dtype type, struct tp_err *err);
tp_status mpi_broadcast(struct host_group *g, void *buf, int64_t n_bytes, int root,
                        struct tp_err *err);
tp_status mpi_barrier(struct host_group *g, struct tp_err *err);

#endif
