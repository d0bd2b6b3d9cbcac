/*
 * cli/reshard/reshard_journal.h - how tp-reshard goes on where an earlier run of the same job
 * ended.
 *
 * A run keeps a journal (reshard/transfer_journal.h) in its temporary directory. A later run that
 * is asked for the same finds it, cuts its tensors into the same windows, takes over the temporary,
 * its shards and its checksums, and does the windows that are left. By one process alone; several
 * that share the work (MPI) start over.
 */
#ifndef CLI_RESHARD_RESHARD_TRANSFER_JOURNAL_H
#define CLI_RESHARD_RESHARD_TRANSFER_JOURNAL_H

#include "ckpt/commit.h"
#include "reshard/engine/transfer.h"
#include "reshard/transfer_journal.h"

struct reshard_job;
struct reshard_request;

struct reshard_journal {
    struct transfer_journal_head head; /* of this job: what an old one must be */
    struct transfer_journal *file;
    struct reshard_sums *sums; /* [n_sums] of the source, then of the target; the job's arena */
    int n_sums;
    struct transfer_watch watch;
    double every_s;               /* between records */
    double recorded_s, record_s;  /* when the last one ended, and what it took */
    int64_t windows, done_before; /* of the whole job; done by earlier runs */
    char misfit[PATH_MAX];        /* a dead journal that is not of this job, or "" */
};

/* Say which job this is. Before the plan. */
tp_status reshard_journal_identify(struct reshard_job *job, const struct reshard_request *request,
                                   struct tp_err *err);

/* The buffer for whose windows an earlier run left a journal; 0: none did. */
int64_t reshard_journal_worker_bytes(struct reshard_job *job);

/* Bytes that keeping it takes. */
int64_t reshard_journal_bytes(const struct reshard_job *job);

/* Begin the step, in job->txn: go on where an earlier run ended, or start over, and say in
 * job->note what people want to know of that. On failure nothing is left. */
tp_status reshard_journal_begin(struct reshard_job *job, int64_t epoch, struct tp_err *err);

#endif
