/*
 * orchestrator/process/supervisor.h - the keeper: a small process between tp-run and a job's
 * command.
 *
 * It outlives tp-run, so that a tp-run that is killed and started again finds its job running and
 * learns how it ended. The keeper starts the command, hands signals on to it, and when the command
 * ends kills whatever of the attempt is left, then writes how it ended to a file. When the keeper
 * is killed the kernel kills the command (PR_SET_PDEATHSIG), and tp-run sweeps what is left.
 */
#ifndef ORCHESTRATOR_PROCESS_SUPERVISOR_H
#define ORCHESTRATOR_PROCESS_SUPERVISOR_H

#include <stdbool.h>

#include "core/err.h"

struct supervisor_outcome {
    int exit_code; /* of the command; -1 when a signal ended it */
    int signal;    /* 0: none */
    int started;   /* 0: the command could not be executed: errno in exit_code */
};

/* Be the keeper until the command is over. argv: the command; id: what its processes carry in
 * PROCESS_ID_ENV. The outcome goes to exit_path, whole or not at all. */
tp_status supervisor_run(char **argv, const char *id, const char *exit_path, struct tp_err *err);

/* TP_E_NOTFOUND: the keeper has not written it (yet). */
tp_status supervisor_read(struct supervisor_outcome *out, const char *exit_path,
                          struct tp_err *err);

#endif
