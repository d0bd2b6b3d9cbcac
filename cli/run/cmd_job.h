/*
 * cli/run/cmd_job.h - runs a job in the foreground, and reports what happens.
 */
#ifndef CLI_RUN_CMD_JOB_H
#define CLI_RUN_CMD_JOB_H

#include <stdbool.h>

#include "cli/run/run_context.h"

struct cmd_job_output {
    bool quiet; /* of messages, print only errors */
    bool json;  /* print each event on standard output, as in events.jsonl */
};

/* Run the job of an open context to its end. Messages go to standard error. Returns the exit code;
 * that of a job that is done is 3 when events were to be printed and some of them are lost. */
int cmd_job_run(const struct run_context *c, struct cmd_job_output how);

#endif
