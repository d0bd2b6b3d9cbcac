/*
 * orchestrator/job/job_yaml.h - the YAML of a job file into struct job, by the tables of job_key.h.
 */
#ifndef ORCHESTRATOR_JOB_JOB_YAML_H
#define ORCHESTRATOR_JOB_JOB_YAML_H

#include <stddef.h>

#include "orchestrator/job/job_backend.h"

/* Set every default, then what the text says. job->path and job->dir are set before.
 * TP_E_USAGE: the sentence names the line and the key. */
tp_status job_yaml(struct job *job, const char *text, size_t size,
                   const struct job_backend *const *backends, struct arena *arena,
                   struct tp_err *err);

#endif
