/*
 * cli/rank_env.h - what the environment of a process says of the ranks beside it.
 */
#ifndef CLI_RANK_ENV_H
#define CLI_RANK_ENV_H

#include "comm/env.h"

/* Whether mpirun or srun started this process as a rank, and how many there are; TP_HOST_RANKS, for
 * tests. Sets what MPI reads when it begins, unless the user has: a rank that waits gives its core
 * to one that works. */
void rank_env_read(struct comm_env *env);

/* What a library reads from the environment when it is loaded is too late to set in main. This sets
 * it and executes the program again, with the same arguments and process number; where it is set
 * already, or that cannot be done, it returns and does nothing. Call first in main.
 * It is OMP_WAIT_POLICY=passive: threads that wait for the next loop sleep instead of spinning for
 * milliseconds, on cores that other ranks need. */
void rank_env_prepare(char **argv);

/* Whether another process of this mpirun or srun finds the same faults in the same command line and
 * reports them. */
bool rank_env_is_echo(void);

#endif
