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

/* The same for SIGTERM, SIGINT and SIGHUP too, for programs that people stop with Ctrl-C,
 * schedulers with SIGTERM, and terminals that close with SIGHUP. SIGINT and SIGHUP stay ignored
 * when they are ignored, as in a shell's background and under nohup. */
void stop_listen_all(void);

/* Whether the signal is ignored, because the parent wanted it so (nohup). Such a signal must not be
 * blocked: an ignored signal that is blocked becomes pending, so it would be a request. */
bool stop_is_ignored(int signal_number);

/* Whether this process was asked to save and stop. */
bool stop_requested(void);

#endif
