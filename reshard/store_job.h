/*
 * reshard/store_job.h - a reshard whose result goes to an S3-compatible store.
 *
 * Shards are uploaded while they are written, without a local copy. There is no journal: a run that
 * was interrupted leaves nothing, and the next one starts over.
 */
#ifndef RESHARD_STORE_JOB_H
#define RESHARD_STORE_JOB_H

#include <stdint.h>

#include "core/arena.h"
#include "reshard/copy_job.h"
#include "reshard/formats/checkpoint/checkpoint.h"

struct store_job {
    const char *root; /* s3://... */
    const struct manifest *from;
    const struct layout *to;
    struct checkpoint_target *target;
    struct copy_job *copy;
    struct arena *arena;
    struct comm_control *control; /* processes that share the work; NULL: this one alone */
};

/* The most bytes that parts of uploads need at the same time: those that are incomplete, and those
 * that are sent. packers: threads that compress; 0: nothing is compressed. `shared`: several
 * processes write together. */
tp_status store_job_bytes(int64_t *out, const struct checkpoint_target *target,
                          const struct layout *to, int packers, bool shared, struct tp_err *err);

/* Copy, prove and commit. TP_E_STOPPED: a signal asked to stop. After a failure nothing is left in
 * the store, as far as it answers. Collective over control; rank 0 begins and completes uploads and
 * commits. */
tp_status store_job_run(struct store_job *job, struct tp_err *err);

#endif
