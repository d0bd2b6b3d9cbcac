/*
 * cli/run/cmd_job.h - runs a job in the foreground and reports on standard error.
 */
#ifndef CLI_RUN_CMD_JOB_H
#define CLI_RUN_CMD_JOB_H

#include <stdbool.h>

#include "cli/run/run_context.h"

/* Run the job of an open context. Returns the exit code. */
int cmd_job_run(const struct run_context *c, bool quiet);

#endif
