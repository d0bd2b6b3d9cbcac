/*
 * core/stop.h - "save and stop": whether somebody has asked this process to.
 *
 * The signals that ask are blocked and left pending, and a pending signal is the answer. So no
 * handler runs, no call is interrupted, no request is lost between start-up and the first look, and
 * every look gives the same answer.
 */
#ifndef CORE_STOP_H
#define CORE_STOP_H

#include <stdbool.h>

/* From now on SIGUSR1 asks instead of killing. Call before any thread exists (so before comm_init:
 * MPI makes threads). launch_ranks does it for its ranks. */
void stop_listen(void);

/* The same for SIGINT (unless it is ignored, as in a shell's background) and SIGTERM too: for a
 * program that people stop by Ctrl-C and schedulers by SIGTERM. From now on the caller looks. */
void stop_listen_all(void);

/* Whether this process has been asked to save and stop. */
bool stop_requested(void);

#endif
