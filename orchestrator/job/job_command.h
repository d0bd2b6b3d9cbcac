/*
 * orchestrator/job/job_command.h - the command lines that a job file describes, for one attempt.
 */
#ifndef ORCHESTRATOR_JOB_JOB_COMMAND_H
#define ORCHESTRATOR_JOB_JOB_COMMAND_H

#include <stdbool.h>

#include "orchestrator/job/job.h"
#include "orchestrator/job/run_config.h"

/* `words` of the job with {layout} {ckpt} {ranks} {attempt} {state}, and the degrees {tp} {pp}
 * {vpp} {dp} {cp} {ep} of the layout, replaced. In the arena. */
tp_status job_fill(struct job_words *out, const struct job *j, const struct job_words *words,
                   const struct spec *layout, int64_t attempt, struct arena *arena,
                   struct tp_err *err);

/* The job's command for one attempt. For tp-train, missing options --layout, --ckpt, --resume and
 * --log are added, and --micro and --recompute if the config sets them.
 * must_resume: starting without a checkpoint is an error. In the arena. */
tp_status job_command(struct job_words *out, const struct job *j, const struct run_config *config,
                      int64_t attempt, bool must_resume, struct arena *arena, struct tp_err *err);

/* Whether another program (env, numactl, a profiler) starts tp-train, so that no options are added,
 * and the command has no --resume either: every restart would begin again. */
bool job_command_never_resumes(const struct job *j);

#endif
