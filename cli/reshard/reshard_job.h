/*
 * cli/reshard/reshard_job.h - a checkpoint rewritten at another layout: what tp-reshard does,
 * without its options and its printing.
 */
#ifndef CLI_RESHARD_RESHARD_JOB_H
#define CLI_RESHARD_RESHARD_JOB_H

#include <limits.h>

#include "ckpt/commit.h"
#include "ckpt/manifest.h"
#include "cli/reshard/reshard_journal.h"
#include "comm/comm.h"
#include "reshard/engine/transfer.h"
#include "reshard/formats/checkpoint.h"

struct reshard_request {
    const char *ckpt;        /* root or step directory */
    const char *to;          /* spec */
    const char *from;        /* spec, or NULL: not checked */
    const char *out;         /* root, or NULL: CKPT-SPEC */
    int64_t step;            /* -1: the newest */
    int64_t memory_bytes;    /* resident memory of this process, at most */
    int jobs;                /* threads */
    bool no_optim;           /* weights only */
    const enum dtype *dtype; /* cast of the weights, or NULL */
    bool force;              /* replace the step of OUT */
    double journal_s;        /* seconds between records of how far it is; 0: as often as can be */
};

struct reshard_job {
    struct arena arena;
    struct comm *comm;
    bool force;
    char dir[PATH_MAX];             /* step directory of the source */
    char out[PATH_MAX];             /* root of the target */
    struct manifest m;              /* the source's */
    struct layout layout;           /* the target's */
    int *ids;                       /* [layout.n_tensors] the same tensors in m */
    struct reshard_tensor *tensors; /* [layout.n_tensors] */
    struct checkpoint_source *source;
    struct checkpoint_target *target;
    struct transfer_plan *plan;
    struct ckpt_txn txn;
    struct reshard_journal journal;
    struct transfer_stats planned, done; /* of this process */
    int64_t base_bytes;                  /* resident without the buffers, as foreseen */
    int digests_equal;     /* tensors whose digest is the same at both ends, by proof */
    int casts;             /* tensors that were cast, so that it cannot be */
    char note[TP_ERR_MAX]; /* what the last call has to say though the work goes on, or
                              "" */
};

/* Open, lay out, prove, size; nothing is created. job is zeroed by the caller and freed by it in
 * any case. Collective over comm (NULL: this process alone), as is reshard_job_run. */
tp_status reshard_job_plan(struct reshard_job *job, const struct reshard_request *request,
                           struct comm *comm, struct tp_err *err);

/* Begin OUT's step, or go on with what an earlier run of the same job left of it: then job->planned
 * is what is left to do. On failure what was begun is gone. From now on SIGINT and SIGTERM are
 * looked at between windows alone. */
tp_status reshard_job_begin(struct reshard_job *job, struct tp_err *err);

/* Write OUT's step, which was begun. TP_E_STOPPED: a signal asked for it; what was begun stays, and
 * a later run goes on with it. On other failures nothing has appeared and what was begun is gone.
 */
tp_status reshard_job_run(struct reshard_job *job, struct progress *progress, struct tp_err *err);

void reshard_job_free(struct reshard_job *job);

#endif
