/*
 * comm/host/mpi_mail.h - messages between two ranks over MPI, and a gather of parts of any size,
 * which uses them. A large message is sent in pieces, so that each count fits an int. Only
 * comm/host/ uses this.
 */
#ifndef COMM_HOST_MPI_MAIL_H
#define COMM_HOST_MPI_MAIL_H

#include "comm/host/group.h"

tp_status mpi_send(struct host_group *g, const void *buf, int64_t n_bytes, int to,
                   struct host_request *r, struct tp_err *err);
tp_status mpi_wait(struct host_group *g, struct host_request *r, struct tp_err *err);
tp_status mpi_recv(struct host_group *g, void *buf, int64_t n_bytes, int from, struct tp_err *err);
tp_status mpi_gather(struct host_group *g, const void *in, int64_t n_bytes, void **out,
                     int64_t *sizes, struct tp_err *err);

#endif
