/*
 * reshard/resume.h - how reshard resumes where an interrupted run of the same request ended. Inside
 * reshard/ only.
 *
 * A run keeps a journal (reshard/transfer_journal.h) in its temporary directory. A later run of the
 * same request finds it, cuts its tensors into the same tiles, takes over the temporary directory,
 * its shards and its checksums, checks that the shards have them, and does the tiles that are left.
 * Only a process that works alone does this; several processes (MPI) start over.
 */
#ifndef RESHARD_RESUME_H
#define RESHARD_RESUME_H

#include "ckpt/transaction.h"
#include "reshard/copy_job.h"
#include "reshard/formats/checkpoint/checkpoint.h"
#include "reshard/transfer_journal.h"

struct resume {
    struct transfer_journal_head head; /* of this run: what an earlier journal must have */
    struct transfer_journal *journal;
    struct reshard_sums *sums; /* [n_sums] of the source, then of the target; in the arena */
    int n_sums;
    const char *tmp;   /* temporary directory of an interrupted run of this request, or NULL */
    const char *other; /* one of another request, or one that is damaged; NULL: none */
    int64_t found_thread_bytes, found_tiles; /* how the run in tmp cut its tiles */
    bool found_made_root;

    double interval_s;            /* between records */
    double recorded_s, record_s;  /* when the last record ended, and how long it took */
    int64_t tiles, resumed_tiles; /* of the whole job; completed by earlier runs */
    int64_t damaged_chunks;       /* of those; they were copied again */
};

/* The parts of a job that resuming needs; all borrowed. */
struct resume_job {
    struct copy_job *copy;
    struct checkpoint_source *source;
    struct checkpoint_target *target;
    struct arena *arena;
    struct progress *progress; /* receives notes */
};

/* Look for what interrupted runs left of this step of the root. identity_sha256 says what this run
 * does. */
tp_status resume_find(struct resume *r, const char identity_sha256[SHA256_TEXT], const char *root,
                      int64_t step, struct arena *arena, struct tp_err *err);

/* Bytes of memory that the journal of a job needs. */
int64_t resume_memory_bytes(const struct resume_job *job);

/* Begin the step: resume the interrupted run if it fits, else start over. Afterwards
 * job->copy->planned is what is left to do. What the interrupted run wrote is read back first
 * (reshard/read_back.h). TP_E_STOPPED: a signal came meanwhile, and everything is as it was. After
 * any other failure nothing is left. */
tp_status resume_begin(struct resume *r, struct ckpt_transaction *t,
                       const struct ckpt_begin_request *request, const struct resume_job *job,
                       struct tp_err *err);

/* Execute all rounds, and record progress between them. TP_E_STOPPED: a signal asked for it, and
 * everything that is complete has been recorded. */
tp_status resume_run(struct resume *r, const struct resume_job *job, struct tp_err *err);

void resume_free(struct resume *r);

#endif
