/*
 * comm/host/shm.h - groups of ranks that share memory (comm/host/shm_job.h). Only comm/ uses this.
 */
#ifndef COMM_HOST_SHM_H
#define COMM_HOST_SHM_H

#include "comm/env.h"
#include "comm/host/group.h"
#include "comm/host/shm_job.h"

/* This process is a rank that launch_ranks started. TP_E_NOMEM: a rank has less shared memory
 * than local_bytes. */
tp_status shm_process_open(struct host_process *p, struct host_group *all,
                           const struct comm_launched *r, int64_t local_bytes, struct tp_err *err);

/* Make g the handle of a rank of the job on the group `shared`. TP_E_NOMEM. */
tp_status shm_group_open(struct host_group *g, struct shm_job *job, struct shm_group *shared,
                         int host_rank, struct tp_err *err);

#endif
