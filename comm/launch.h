/*
 * comm/launch.h - start the ranks of a job on this host, without mpirun.
 *
 * The launcher stays as the parent: it forwards SIGTERM, SIGINT, SIGHUP and SIGUSR1 to its ranks as
 * SIGUSR1 (save and stop: a rank asks core/stop.h), and a second Ctrl-C ends them at once. SIGHUP
 * stays ignored when it is ignored, as under nohup. When a signal kills a rank, the launcher names
 * it and ends the others at once. When a rank fails, the launcher ends those that wait for it at
 * once, and the rest after 1.2 seconds. If all have agreed on the failure (control_agree), the rest
 * have a minute, because they may be reporting it and removing unfinished files. Ranks die with the
 * launcher.
 */
#ifndef COMM_LAUNCH_H
#define COMM_LAUNCH_H

#include "comm/env.h"
#include "core/err.h"

/* Fork n_ranks ranks (1 to 256). In a rank: returns TP_OK with *me filled in, for
 * comm_env.launched; SIGINT, SIGTERM and SIGHUP are ignored, and stop_listen has been called. A
 * rank prints its own error before comm_close; only rank 0 prints an error that all have agreed on
 * (control_agree). In the launcher: waits for all, then returns with me->rank = -1: TP_OK with the
 * job's exit code in *exit_code (that of the first rank that failed; else 75 if any rank ended with
 * 75; else 0), or TP_E_COMM when a rank was killed by a signal or left the others without
 * comm_close (err names it); the forwarded signals stay blocked then, so that none of them replaces
 * this exit code. n_ranks = 1 forks too, so that signals have the same meaning. Call before any
 * thread exists. TP_E_USAGE: n_ranks; TP_E_IO: the system refuses to start processes or has too
 * little address space. */
tp_status launch_ranks(int n_ranks, struct comm_launched *me, int *exit_code, struct tp_err *err);

#endif
