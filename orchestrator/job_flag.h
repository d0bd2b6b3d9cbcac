/*
 * orchestrator/job_flag.h - what the job's own command line says.
 *
 * Options of tp-train are read as getopt_long reads them: short and long forms, unique beginnings
 * of a long one, the last of several. Other programs': `--name V` and `--name=V` alone.
 */
#ifndef ORCHESTRATOR_JOB_FLAG_H
#define ORCHESTRATOR_JOB_FLAG_H

#include "orchestrator/job.h"

/* The value of `name` ("--model") in the command; "" where it is the last word; NULL: not there. */
const char *job_flag(const struct job *j, const char *name);

/* Whether that value is only known at launch: it has a {name} to fill in. */
bool job_flag_is_open(const struct job *j, const char *name);

/* What tp-train's command line says need not be said twice: fill in what the job file leaves out.
 * TP_E_USAGE: the two contradict each other. */
tp_status job_flags_read(struct job *j, struct arena *arena, struct tp_err *err);

#endif
