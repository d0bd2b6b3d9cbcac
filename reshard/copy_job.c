/* reshard/copy_job.c - see reshard/copy_job.h. */
#include "reshard/copy_job.h"

#include <stddef.h>

#include "core/stop.h"

/* Seconds between questions whether to stop. */
#define ROUND_S 0.5

enum { FLUSH_BYTES = 24 << 20 }; /* enough for a thread */

tp_status copy_job_plan(struct copy_job *job, int64_t memory_bytes, int64_t later_bytes,
                        struct tp_err *err)
{
    struct transfer *t = &job->transfer;
    tp_status st = memory_budget_make(&job->memory, memory_bytes, later_bytes, t->threads, err);

    st = control_agree(t->control, st, err);
    if (st)
        return st;
    t->memory_bytes = job->memory.buffer_bytes;
    st = transfer_plan_make(&job->plan, t, err);
    if (!st)
        transfer_plan_stats(job->plan, &job->planned);
    return st;
}

int64_t copy_job_collect(struct checkpoint_target *target, int64_t memory_bytes,
                         int64_t later_bytes, int threads)
{
    const int64_t least = checkpoint_target_memory(target);

    if (least > 0)
        checkpoint_target_collect(target, memory_budget_part(memory_bytes, later_bytes + least,
                                                             threads, CHECKPOINT_COLLECT_MIN,
                                                             FLUSH_BYTES * (int64_t)threads));
    return checkpoint_target_memory(target);
}

tp_status copy_job_run(struct copy_job *job, struct tp_err *err)
{
    progress_action(job->transfer.progress, "copying", PROGRESS_COPIED, job->planned.bytes_written);
    return transfer_execute(job->plan, &job->done, err);
}

tp_status copy_job_run_or_stop(struct copy_job *job, struct tp_err *err)
{
    struct transfer_run *run = NULL;
    int64_t done = 0;
    tp_status st = transfer_begin(&run, job->plan, err);

    if (st)
        return st;
    progress_action(job->transfer.progress, "copying", PROGRESS_COPIED, job->planned.bytes_written);
    while (!st && !transfer_is_done(run)) {
        if (stop_requested())
            st = tp_fail(err, TP_E_STOPPED,
                         "interrupted: %lld of %lld tiles were complete; nothing is kept, so the "
                         "same command starts over",
                         (long long)done, (long long)job->planned.tiles);
        else
            st = transfer_round(run, ROUND_S, &done, err);
    }
    return transfer_end(run, st, &job->done, err);
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
