/*
 * orchestrator/job/job_option.h - the options in the job's command line.
 *
 * Options of tp-train are read as getopt_long reads them: short and long forms, unique beginnings
 * of a long form, and the last one if there are several. Options of other programs are read only as
 * `--name V` and `--name=V`.
 */
#ifndef ORCHESTRATOR_JOB_JOB_OPTION_H
#define ORCHESTRATOR_JOB_JOB_OPTION_H

#include "orchestrator/job/job.h"

/* The value of `name` ("--model") in the command; "": it is the last word; NULL: the command does
 * not have it. */
const char *job_option(const struct job *j, const char *name);

/* Whether the value has a {name} that is replaced at launch, so that it is not known yet. */
bool job_option_is_open(const struct job *j, const char *name);

/* Whether the command is tp-train with --device cuda or auto. */
bool job_uses_gpus(const struct job *j);

/* The same with --device cuda: its ranks train on GPUs or not at all. */
bool job_needs_gpus(const struct job *j);

/* Set the fields that the job file leaves out from tp-train's command line. TP_E_USAGE: the two
 * contradict each other, or tp-train has no such option (the message suggests the nearest). */
tp_status job_options_read(struct job *j, struct arena *arena, struct tp_err *err);

#endif
