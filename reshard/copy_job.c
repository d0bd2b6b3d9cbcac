/* reshard/copy_job.c - see reshard/copy_job.h. */
#include "reshard/copy_job.h"

#include <stddef.h>

tp_status copy_job_plan(struct copy_job *job, int64_t memory_bytes, int64_t later_bytes,
                        struct tp_err *err)
{
    struct transfer *t = &job->transfer;
    tp_status st = memory_budget_make(&job->memory, memory_bytes, later_bytes, t->threads, err);

    if (t->control)
        st = control_agree(t->control, st, err);
    if (st)
        return st;
    t->memory_bytes = job->memory.buffer_bytes;
    st = transfer_plan_make(&job->plan, t, err);
    if (!st)
        transfer_plan_stats(job->plan, &job->planned);
    return st;
}

tp_status copy_job_run(struct copy_job *job, struct tp_err *err)
{
    progress_total(job->transfer.progress, job->planned.bytes_written);
    return transfer_execute(job->plan, &job->done, err);
}

tp_status copy_job_prove(struct copy_job *job, struct tp_err *err)
{
    return transfer_compare_digests(job->plan, &job->digests_equal, &job->casts, err);
}

void copy_job_free(struct copy_job *job)
{
    transfer_plan_free(job->plan);
    job->plan = NULL;
}
