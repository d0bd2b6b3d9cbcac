/*
 * orchestrator/process/supervisor.h - the process between tp-run and a job's command.
 *
 * The supervisor (`tp-run supervise`) outlives tp-run. So when tp-run is killed and started again,
 * the job still runs, and tp-run learns how it ended. The supervisor starts the command and
 * forwards signals to it. When the command ends, it kills the remaining processes of the attempt,
 * and then writes to a file how the command ended. When the supervisor is killed, the kernel kills
 * the command (PR_SET_PDEATHSIG), and tp-run kills the remaining processes.
 */
#ifndef ORCHESTRATOR_PROCESS_SUPERVISOR_H
#define ORCHESTRATOR_PROCESS_SUPERVISOR_H

#include <signal.h>
#include <sys/types.h>

#include "core/err.h"
#include "orchestrator/process/environment.h"

/* How the command ended. */
struct supervisor_outcome {
    int exit_code; /* -1 when a signal ended it */
    int signal;    /* 0: none */
    int started;   /* 0: the command could not be executed, and exit_code is the errno */
};

/* ---- the supervisor itself ---- */

struct supervisor_setup {
    char **argv;           /* the command */
    const char *id;        /* the value of PROCESS_ID_ENV in its processes */
    const char *exit_path; /* where the outcome is written atomically */
    const struct environment *env;
};

/* The signals that it forwards. Who starts it blocks them in it, so that one that comes before it
 * can forward it does not kill it. */
void supervisor_signals(sigset_t *out);

/* Start the command, wait for its end, kill the remaining processes, write the outcome. */
tp_status supervisor_run(const struct supervisor_setup *setup, struct tp_err *err);

/* ---- tp-run's side ---- */

/* A supervisor that tp-run watches. */
struct supervisor {
    pid_t pid; /* 0: none */
    int pidfd; /* readable when it has ended; -1: it has ended */
};

/* Watch a running process. TP_E_IO: it cannot be watched. */
tp_status supervisor_watch(struct supervisor *s, pid_t pid, struct tp_err *err);
void supervisor_forget(struct supervisor *s);

/* Ask the command to save and stop: the supervisor forwards this signal to it. */
void supervisor_ask_to_stop(const struct supervisor *s, int sig);

/* Read what supervisor_run wrote. TP_E_NOTFOUND: it has not written it. TP_E_CORRUPT. */
tp_status supervisor_read(struct supervisor_outcome *out, const char *exit_path,
                          struct tp_err *err);

#endif
