/*
 * comm/host/mpi.h - ranks that mpirun or srun started. Inside comm/.
 *
 * Messages between ranks of one host cost MPI two copies and a wait that spins. So the ranks of a
 * host map a job of comm/host/shm_job.h together, and every group within a host uses that; only
 * those that span hosts use MPI. Where the mapping cannot be made (other containers, limits), all
 * use MPI.
 */
#ifndef COMM_HOST_MPI_H
#define COMM_HOST_MPI_H

#include "comm/env.h"
#include "comm/host/group.h"

/* TP_E_COMM: MPI fails, or knows of other ranks than env does. */
tp_status mpi_process_open(struct host_process *p, struct host_group *all,
                           const struct comm_env *env, int64_t local_bytes, struct tp_err *err);

#endif
