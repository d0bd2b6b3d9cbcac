/*
 * comm/host/mpi.h - ranks that mpirun or srun started. Only comm/ uses this.
 *
 * MPI copies a message between ranks of one host twice, and its waits spin. So the ranks of a host
 * map the memory of comm/host/shm_job.h, and every group within a host uses it. Only groups that
 * span hosts use MPI. If the memory cannot be mapped (because of containers or limits), all groups
 * use MPI.
 */
#ifndef COMM_HOST_MPI_H
#define COMM_HOST_MPI_H

#include "comm/env.h"
#include "comm/host/group.h"

/* Join the ranks of MPI. TP_E_COMM: MPI fails, or its number of ranks differs from env's. */
tp_status mpi_process_open(struct host_process *p, struct host_group *all,
                           const struct comm_env *env, int64_t local_bytes, struct tp_err *err);

#endif
