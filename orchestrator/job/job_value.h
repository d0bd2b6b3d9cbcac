/*
 * orchestrator/job/job_value.h - one value of the job file from its text, by the kind of its key.
 */
#ifndef ORCHESTRATOR_JOB_JOB_VALUE_H
#define ORCHESTRATOR_JOB_JOB_VALUE_H

#include "core/arena.h"
#include "core/err.h"
#include "orchestrator/job/job_key.h"

/* out: the field of struct job, as wide as the key's kind. Paths are taken from `dir`. When the
 * text is no such value *expected says what it should have been; strings live in the arena. */
tp_status job_value(void *out, const char **expected, const struct job_key *k, const char *text,
                    const char *dir, struct arena *arena, struct tp_err *err);

#endif
