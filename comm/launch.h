/*
 * comm/launch.h - start the ranks of a job on this host, when no mpirun did.
 *
 * The launcher stays as the parent: it forwards SIGTERM and SIGUSR1 to its ranks as SIGUSR1 (save
 * and stop), and ends the others at once when a rank dies, naming it. Ranks die with the launcher.
 */
#ifndef COMM_LAUNCH_H
#define COMM_LAUNCH_H

#include <stdbool.h>

#include "core/err.h"

/* Whether this process was started as a rank by mpirun or srun; *world gets their number. */
bool launch_is_mpi(int *world);

/* Fork n_ranks ranks. In a rank: returns TP_OK with *rank set, and comm_init finds the world. In
 * the launcher: waits for all, then returns with *rank = -1: TP_OK with *exit_code what the job's
 * exit code is (the highest of: 0, 75, then the first failing rank's), or TP_E_COMM when a rank was
 * killed by a signal (named, with its step and host state unknown). n_ranks = 1 forks too, so that
 * signals mean the same. Call before any thread exists. */
tp_status launch_ranks(int n_ranks, int *rank, int *exit_code, struct tp_err *err);

#endif
