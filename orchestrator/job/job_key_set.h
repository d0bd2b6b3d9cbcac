/*
 * orchestrator/job/job_key_set.h - all keys that a job file may have: job_keys() and those of each
 * backend.
 *
 * `backends` ends with NULL. A section is "" at the top level.
 */
#ifndef ORCHESTRATOR_JOB_JOB_KEY_SET_H
#define ORCHESTRATOR_JOB_JOB_KEY_SET_H

#include <stdbool.h>

#include "orchestrator/job/job_backend.h"

/* NULL: there is no such key. */
const struct job_key *job_key_set_find(const struct job_backend *const *backends,
                                       const char *section, const char *name);

/* The key of a section that is meant by a name at the top level, as the documentation has it
 * ("restart.max") or without its section ("min_ranks"). NULL: none. */
const struct job_key *job_key_set_in_section(const struct job_backend *const *backends,
                                             const char *name);

bool job_key_set_has_section(const struct job_backend *const *backends, const char *name);

/* The key of the section, or at the top level the section, that a mistyped name probably means.
 * NULL: none is similar. */
const char *job_key_set_similar(const struct job_backend *const *backends, const char *section,
                                const char *name);

#endif
