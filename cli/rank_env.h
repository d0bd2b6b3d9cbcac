/*
 * cli/rank_env.h - what mpirun or srun put into the environment of a rank.
 */
#ifndef CLI_RANK_ENV_H
#define CLI_RANK_ENV_H

#include "comm/env.h"

/* Fill in *env: whether mpirun or srun started this process as a rank, and how many ranks there
 * are; TP_HOST_RANKS, for tests. Also set the variable that makes a waiting rank of MPI yield its
 * core to a working one, unless the user has set it. */
void rank_env_read(struct comm_env *env);

/* Set OMP_WAIT_POLICY=passive, so that threads that wait for the next loop sleep, instead of
 * spinning for milliseconds on cores that other ranks need. The OpenMP library reads the variable
 * when it is loaded, so this executes the program again, with the same arguments and process id. It
 * does nothing if the variable is set already or the program cannot be executed. Call it first in
 * main(). */
void rank_env_prepare(char **argv);

/* Whether this is not the first rank of mpirun or srun. All ranks have the same command line, so
 * only the first prints what is wrong with it. */
bool rank_env_is_echo(void);

/* Where the output of such a rank went before. */
struct rank_env_silence {
    int out, err; /* descriptors; -1: as before */
};

/* Send the output of a rank that is not the first one to /dev/null while it reads the command line,
 * and back. */
struct rank_env_silence rank_env_silence_echo(void);
void rank_env_end_silence(struct rank_env_silence s);

/* Call it before this process exits with an error and has not joined the other ranks. A launcher
 * may end all ranks as soon as one of them exits with an error. So ranks that print nothing wait
 * until the launcher ends them because the first has exited, or for five seconds. */
void rank_env_wait_for_first(void);

#endif
