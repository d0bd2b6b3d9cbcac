/*
 * reshard/clone_job.h - the tensors of a reshard whose bytes need not move: every box of the source
 * is a whole run of a box of the target, and the file system can share its blocks.
 *
 * It runs after the transfer of all other tensors, so the journal of that transfer knows nothing of
 * it: a reshard that is resumed clones everything again, which costs nothing.
 */
#ifndef RESHARD_CLONE_JOB_H
#define RESHARD_CLONE_JOB_H

#include "core/progress.h"
#include "reshard/formats/checkpoint/checkpoint.h"

struct clone_job {
    bool *tensors;      /* [n_tensors] that are cloned; NULL: none */
    int n_tensors;      /* of them */
    int n;              /* boxes of the source */
    int *from, *to;     /* [n] extents */
    int64_t bytes;      /* of all */
    int64_t not_cloned; /* after clone_job_run: bytes that had to be copied */
};

/* Whether files in the folder `from`, and in the nearest folder above `to` that exists, are on one
 * file system of a kind that shares blocks. */
bool clone_job_possible(const char *from, const char *to);

/* Choose the tensors. Those of another type in the target are not cloned, nor are small ones.
 * tensors[i] is tensor i of the transfer, and `layout` the target's. */
tp_status clone_job_plan(struct clone_job *job, const struct checkpoint_source *source,
                         const struct checkpoint_target *target,
                         const struct reshard_tensor *tensors, const struct layout *layout,
                         struct tp_err *err);

/* Clone all boxes. The files of the target exist. progress counts them; NULL: none. */
tp_status clone_job_run(struct clone_job *job, const struct checkpoint_source *source,
                        struct checkpoint_target *target, int threads, struct progress *progress,
                        struct tp_err *err);

void clone_job_free(struct clone_job *job);

#endif
