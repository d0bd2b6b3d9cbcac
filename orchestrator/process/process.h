/*
 * orchestrator/process/process.h - the processes of an attempt: named by their environment, never
 * by pid alone.
 *
 * Every process of an attempt has TP_RUN_ID=<run id>.<attempt> in the environment it was started
 * with, whoever its parent is now, so that nothing is orphaned: process_sweep finds ranks that
 * mpirun left behind, and a tp-run that was started anew finds those of the one before it. A pid
 * that was reused meanwhile is not hit: the signal goes through a pidfd that was opened before the
 * environment was read.
 */
#ifndef ORCHESTRATOR_PROCESS_PROCESS_H
#define ORCHESTRATOR_PROCESS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_ID_ENV         "TP_RUN_ID"    /* in ranks and their launcher */
#define PROCESS_SUPERVISOR_ENV "TP_KEEPER_ID" /* in the keeper alone */

/* pidfd_open, close-on-exec; -1: no such process. */
int process_pidfd(pid_t pid);

/* Field 22 of /proc/PID/stat; 0: no such process. */
int64_t process_start(pid_t pid);

/* R, S, D, T (stopped), t (traced), Z ...; 0: no such process. */
char process_state(pid_t pid);

/* Send sig (0: only count) to every process with `env`=`id` in its environment; an id ending in '.'
 * stands for every attempt of a run. Zombies do not count. Returns how many there were. */
int process_sweep(const char *env, const char *id, int sig);

/* The pid of a process with `env`=`id`, 0: none. */
pid_t process_find(const char *env, const char *id);

#endif
