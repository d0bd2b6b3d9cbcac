/*
 * reshard/shared_step.h - a new local step of a checkpoint that several processes write: rank 0
 * begins, proves and commits it. Inside reshard/ only. store_job.h does the same in a store.
 *
 * It has no journal: when a process dies, the launcher ends the others, and the next run starts
 * over and removes what is left.
 */
#ifndef RESHARD_SHARED_STEP_H
#define RESHARD_SHARED_STEP_H

#include "ckpt/transaction.h"
#include "reshard/copy_job.h"

struct shared_step {
    struct ckpt_begin_request begin;  /* without an epoch */
    struct checkpoint_target *target; /* planned, with the same control */
    struct copy_job *copy;            /* planned */
    struct arena *arena;
    struct comm_control *control;
};

/* Begin, copy, finish, prove and commit; m has what the target does not know. After a failure
 * nothing is left. Collective; all processes get the same status. */
tp_status shared_step_run(struct shared_step *s, struct manifest *m, struct tp_err *err);

/* A folder that rank 0 has made: `path` becomes its path on all processes. TP_E_NOTFOUND: a process
 * does not have it. Collective. */
tp_status shared_step_folder(struct comm_control *control, char path[PATH_MAX], struct tp_err *err);

/* Rank 0 notes how many processes have no shard to compress, if there are any. */
void shared_step_note_idle(const struct checkpoint_target *target, struct comm_control *control,
                           struct progress *progress);

#endif
