/* orchestrator/backends.c - see orchestrator/backends.h. */
#include "orchestrator/backends.h"

#include "orchestrator/backend/slurm/slurm_options.h"

static const struct job_backend LOCAL_JOB_BACKEND = { .name = "local" };

const struct job_backend *const *backends_job(void)
{
    static const struct job_backend *const list[] = { &LOCAL_JOB_BACKEND, &SLURM_JOB_BACKEND,
                                                      NULL };

    return list;
}
