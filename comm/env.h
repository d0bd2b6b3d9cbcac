/*
 * comm/env.h - what a process needs to know to find the other ranks. Programs fill it from their
 * command line and environment (cli/rank_env.h); comm/ reads no environment.
 */
#ifndef COMM_ENV_H
#define COMM_ENV_H

#include <stdbool.h>

struct shm_job;

/* A rank that launch_ranks started (comm/launch.h). */
struct comm_launched {
    int rank;            /* < 0: this process is not such a rank */
    struct shm_job *job; /* NULL: not started by launch_ranks */
};

/* All zero: there is only one rank. */
struct comm_env {
    struct comm_launched launched;
    bool is_mpi;    /* started by mpirun or srun */
    int mpi_size;   /* the number of ranks; 0: only MPI knows it */
    int mpi_rank;   /* -1: only MPI knows it */
    int host_ranks; /* > 0: at most this many neighbouring ranks count as one host; for tests */
};

#endif
