/* orchestrator/backends.c - see orchestrator/backends.h: the only place that lists them. */
#include "orchestrator/backends.h"

#include <string.h>

#include "orchestrator/backend/local/local.h"
#include "orchestrator/backend/slurm/slurm.h"
#include "orchestrator/backend/slurm/slurm_options.h"

static const struct backend *const LIST[] = { &LOCAL_BACKEND, &SLURM_BACKEND, NULL };

const struct backend *const *backends(void)
{
    return LIST;
}

const struct job_backend *const *backends_job(void)
{
    static const struct job_backend *const list[] = { &LOCAL_JOB_BACKEND, &SLURM_JOB_BACKEND,
                                                      NULL };

    return list;
}

const struct backend *backends_find(const char *name)
{
    for (int i = 0; LIST[i]; i++)
        if (strcmp(LIST[i]->job->name, name) == 0)
            return LIST[i];
    return NULL;
}

const struct backend *backends_of(const struct job *job)
{
    for (int i = 0; LIST[i]; i++)
        if (LIST[i]->job == job->backend)
            return LIST[i];
    return NULL;
}
