/*
 * orchestrator/job/job_value.h - reads one value of the job file, by the kind of its key.
 */
#ifndef ORCHESTRATOR_JOB_JOB_VALUE_H
#define ORCHESTRATOR_JOB_JOB_VALUE_H

#include "core/arena.h"
#include "core/err.h"
#include "orchestrator/job/job_key.h"

/* Parse `text` into the field at `out`, whose type follows from the key's kind. Lists and BACKEND
 * are read by job_yaml.c. Relative paths are taken from `dir`. Strings live in the arena.
 * TP_E_USAGE: *expected says what the text should have been; err may be unset. */
tp_status job_value(void *out, const char **expected, const struct job_key *k, const char *text,
                    const char *dir, struct arena *arena, struct tp_err *err);

#endif
