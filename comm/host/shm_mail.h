/*
 * comm/host/shm_mail.h - messages between two ranks that share memory. Only comm/host/ uses
 * this.
 *
 * Each ordered pair of ranks has a ring of struct shm_message, which says where the data are. The
 * receiver copies them from the sender's buffer, which is memory of shm_job_alloc.
 */
#ifndef COMM_HOST_SHM_MAIL_H
#define COMM_HOST_SHM_MAIL_H

#include "comm/host/group.h"

tp_status shm_send(struct host_group *g, const void *buf, int64_t n_bytes, int to,
                   struct host_request *r, struct tp_err *err);
tp_status shm_wait(struct host_group *g, struct host_request *r, struct tp_err *err);
tp_status shm_recv(struct host_group *g, void *buf, int64_t n_bytes, int from, struct tp_err *err);

#endif
