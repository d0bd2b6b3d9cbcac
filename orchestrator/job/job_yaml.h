/*
 * orchestrator/job/job_yaml.h - reads the YAML of a job file into struct job, with the tables of
 * job_key.h.
 */
#ifndef ORCHESTRATOR_JOB_JOB_YAML_H
#define ORCHESTRATOR_JOB_JOB_YAML_H

#include <stddef.h>

#include "orchestrator/job/job_backend.h"

/* Set every default, then the values of the text. The caller has set job->path and job->dir.
 * TP_E_USAGE: the sentence names the line and the key. */
tp_status job_yaml(struct job *job, const char *text, size_t size,
                   const struct job_backend *const *backends, struct arena *arena,
                   struct tp_err *err);

#endif
