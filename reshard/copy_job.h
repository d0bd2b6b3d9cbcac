/*
 * reshard/copy_job.h - a transfer within a memory limit, with progress and proof: what reshard,
 * export and import have in common.
 *
 * Call order: plan, run (or run_or_stop, or the rounds of reshard/engine/transfer.h), then finish
 * the target, prove.
 */
#ifndef RESHARD_COPY_JOB_H
#define RESHARD_COPY_JOB_H

#include <stdint.h>

#include "core/err.h"
#include "reshard/engine/transfer.h"
#include "reshard/formats/checkpoint/checkpoint.h"
#include "reshard/memory_budget.h"

struct copy_job {
    struct transfer transfer; /* filled in by the caller, except memory_bytes */
    struct transfer_plan *plan;
    struct memory_budget memory;
    struct transfer_stats planned, done; /* of this process */
    int digests_equal;                   /* tensors whose digest is the same at both ends */
    int casts; /* tensors that were cast, and whose digest is that of the cast */
};

/* Plan within memory_bytes of resident memory; later_bytes as in memory_budget_make. Collective
 * over the transfer's control. */
tp_status copy_job_plan(struct copy_job *job, int64_t memory_bytes, int64_t later_bytes,
                        struct tp_err *err);

/* Let a target that compresses collect enough work for all threads at a time, as far as
 * memory_bytes allow; later_bytes is all else that becomes resident later. Returns what the target
 * needs then. */
int64_t copy_job_collect(struct checkpoint_target *target, int64_t memory_bytes,
                         int64_t later_bytes, int threads);

/* Execute the plan. */
tp_status copy_job_run(struct copy_job *job, struct tp_err *err);

/* The same for a target that cannot be continued: when a signal asks to stop before the last tile
 * (core/stop.h, stop_listen_all), the result is TP_E_STOPPED and the caller removes what was
 * written. */
tp_status copy_job_run_or_stop(struct copy_job *job, struct tp_err *err);

/* Compare the digests of both ends. The target must be finished. */
tp_status copy_job_prove(struct copy_job *job, struct tp_err *err);

void copy_job_free(struct copy_job *job);

#endif
