/*
 * orchestrator/process/process.h - the processes of an attempt, found by their environment.
 *
 * Every process of an attempt is started with TP_RUN_ID=<run id>.<attempt> in its environment,
 * which its own children inherit. So process_sweep finds all of them, even ranks that mpirun left
 * behind, and a new tp-run finds the processes of the one before it. A process that reuses a pid
 * gets no signal, because signals are sent through a pidfd that was opened before the environment
 * was read.
 */
#ifndef ORCHESTRATOR_PROCESS_PROCESS_H
#define ORCHESTRATOR_PROCESS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_ID_ENV         "TP_RUN_ID"        /* in ranks and their launcher */
#define PROCESS_SUPERVISOR_ENV "TP_SUPERVISOR_ID" /* only in the supervisor */
#define PROCESS_HELPER_ENV     "TP_HELPER_ID" /* in programs that run before a launch: <run id>. */

/* A pidfd, close-on-exec; -1: there is no such process. */
int process_pidfd(pid_t pid);

/* Send a signal through a pidfd. */
void process_signal(int pidfd, int sig);

/* How the process of this pidfd has ended, as waitpid has reported it to its parent. False: its
 * parent has not waited for it yet (until then process_stat_read has the status), or the kernel
 * does not say (before Linux 6.15). */
bool process_exit_status(int *status, int pidfd);

/* When the process started, in clock ticks since boot; 0: there is no such process. */
int64_t process_start(pid_t pid);

/* R, S, D, T (stopped), t (traced), Z ... as proc(5) says; 0: there is no such process. */
char process_state(pid_t pid);

/* Send sig (0: none) to every process whose environment has `env`=`id`; an id that ends in '.'
 * matches every attempt of a run. Zombies do not count. Returns the number of processes. A process
 * that executes a program at this moment has no environment to read: the sweep looks at it again
 * until it has one, for a second at most, or ten while it waits for a processor. So 0 means that
 * there is none. */
int process_sweep(const char *env, const char *id, int sig);

/* Kill all processes that process_sweep finds for one of these variables, of which the last is
 * NULL, until there is none, in at most so many sweeps. Returns the most that were found at a time.
 */
int process_end_all(const char *const *envs, const char *id, int sweeps);

/* The pid of a process whose environment has `env`=`id`; 0: there is none. */
pid_t process_find(const char *env, const char *id);

#endif
