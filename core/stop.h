/*
 * core/stop.h - requests to save and stop, made by a signal.
 *
 * The signals are blocked, so a request stays pending, and asking whether one is pending is the
 * answer. No handler runs, no system call is interrupted, a request before the first question is
 * not lost, and the answer stays the same once it is yes.
 */
#ifndef CORE_STOP_H
#define CORE_STOP_H

#include <stdbool.h>

/* From now on SIGUSR1 is a request and does not kill. Call it before any thread exists, so before
 * comm_open, because MPI starts threads. launch_ranks calls it for its ranks. */
void stop_listen(void);

/* The same for SIGTERM and SIGINT too, for programs that people stop with Ctrl-C and schedulers
 * with SIGTERM. SIGINT stays ignored when it is ignored, as in a shell's background. */
void stop_listen_all(void);

/* Whether this process was asked to save and stop. */
bool stop_requested(void);

#endif
