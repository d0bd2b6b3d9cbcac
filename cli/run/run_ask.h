/*
 * cli/run/run_ask.h - what the verbs share that talk to a running tp-run.
 */
#ifndef CLI_RUN_RUN_ASK_H
#define CLI_RUN_RUN_ASK_H

#include <jansson.h>
#include <stdbool.h>

#include "core/arena.h"
#include "core/err.h"
#include "orchestrator/job/job.h"

/* Read the job file and send its tp-run the request (stolen); *answer is the caller's. A tp-run in
 * a batch job on another host is asked through Slurm: srun starts `tp-run ask` beside it.
 * What tp-run refuses comes back as a failure with its sentence. */
tp_status run_ask(json_t **answer, const char *path, json_t *request, struct tp_err *err);

/* The answer on stdout: its sentence, or all of it as a line of JSON. */
void run_ask_print(const json_t *answer, bool as_json);

#endif
