/* orchestrator/job/job_yaml.h - inside of orchestrator/job: the YAML reader. */
#ifndef ORCHESTRATOR_JOB_JOB_YAML_H
#define ORCHESTRATOR_JOB_JOB_YAML_H

#include <stddef.h>

#include "core/arena.h"
#include "core/err.h"

struct job;

/* Set every default and then what the text says; job->path and job->dir are set before. */
tp_status job_yaml(struct job *job, const char *text, size_t size, struct arena *arena,
                   struct tp_err *err);

#endif
