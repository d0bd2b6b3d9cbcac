/*
 * orchestrator/job/job_option.h - what the job's own command line says.
 *
 * Options of tp-train are read as getopt_long reads them: short and long forms, unique beginnings
 * of a long one, the last of several. Other programs': `--name V` and `--name=V` alone.
 */
#ifndef ORCHESTRATOR_JOB_JOB_OPTION_H
#define ORCHESTRATOR_JOB_JOB_OPTION_H

#include "orchestrator/job/job.h"

/* The value of `name` ("--model") in the command; "" where it is the last word; NULL: not there. */
const char *job_option(const struct job *j, const char *name);

/* Whether that value is only known at launch: it has a {name} to fill in. */
bool job_option_is_open(const struct job *j, const char *name);

/* What tp-train's command line says need not be said twice: fill in what the job file leaves out.
 * TP_E_USAGE: the two contradict each other. */
tp_status job_options_read(struct job *j, struct arena *arena, struct tp_err *err);

#endif
