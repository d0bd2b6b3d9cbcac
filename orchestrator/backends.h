/*
 * orchestrator/backends.h - the backends that this build has.
 */
#ifndef ORCHESTRATOR_BACKENDS_H
#define ORCHESTRATOR_BACKENDS_H

#include "orchestrator/backend/backend.h"

/* All of them; the first is the default. NULL after the last. */
const struct backend *const *backends(void);

/* What the job file must know about them, in the same order. NULL after the last. */
const struct job_backend *const *backends_job(void);

/* The backend with this name; the backend of a job. NULL: there is none. */
const struct backend *backends_find(const char *name);
const struct backend *backends_of(const struct job *job);

#endif
