/*
 * orchestrator/backends.h - the back ends that this build has.
 */
#ifndef ORCHESTRATOR_BACKENDS_H
#define ORCHESTRATOR_BACKENDS_H

#include "orchestrator/job/job_backend.h"

/* What the job file has to know of them; the first is the default. NULL after the last. */
const struct job_backend *const *backends_job(void);

#endif
