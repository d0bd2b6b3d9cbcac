/* orchestrator/job/job_backend.c - see orchestrator/job/job_backend.h. */
#include "orchestrator/job/job_backend.h"

int job_backend_ranks(const struct job *j)
{
    return j->backend->ranks ? j->backend->ranks(j) : (int)job_slots(j);
}
