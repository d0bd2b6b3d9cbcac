/*
 * reshard/resume.h - how a reshard, import or export resumes where an interrupted run of the same
 * request ended. Inside reshard/ only.
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
#include "reshard/copy_totals.h"
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
    struct copy_job *copy; /* its endpoints are resumable (reshard/engine/endpoint.h) */
    struct arena *arena;
    struct progress *progress; /* receives notes */
};

/* Look into a temporary directory that an interrupted run left: it becomes r->tmp if it is of this
 * request, whose identity is in r->head. `path` is borrowed. */
void resume_look(struct resume *r, const char *path);

/* Look into those of this step of the root. identity_sha256 says what this run does. */
tp_status resume_find(struct resume *r, const char identity_sha256[SHA256_TEXT], const char *root,
                      int64_t step, struct arena *arena, struct tp_err *err);

/* Bytes of memory that the journal needs for the running checksums that an endpoint has now, and
 * for the chunks of a checkpoint that is written. */
int64_t resume_memory_bytes(const struct reshard_endpoint *e, struct arena *arena);
int64_t resume_chunk_bytes(int64_t chunks);

/* copy_job_plan with the tiles of the interrupted run, when there is one and they fit into the
 * memory, else with any tiles. */
tp_status resume_plan(struct resume *r, struct copy_job *copy, int64_t memory_bytes,
                      int64_t later_bytes, struct tp_err *err);

/* Whether the plan has the tiles of the interrupted run; afterwards the head is complete. */
bool resume_fits(struct resume *r, const struct copy_job *copy);

/* Create the journal in `dir`, where the target has been created; or continue the one that is
 * there, where the target has been created again. What the interrupted run wrote is read back
 * first (reshard/read_back.h); copy->planned is then what is left to do. TP_E_STOPPED: a signal
 * came meanwhile. After another failure it cannot be continued. */
tp_status resume_create(struct resume *r, const char *dir, const struct resume_job *job,
                        struct tp_err *err);
tp_status resume_continue(struct resume *r, const char *dir, const struct resume_job *job,
                          struct tp_err *err);

/* Forget what was continued: sums are zero, and all tiles are to be done. */
tp_status resume_forget(struct resume *r, const struct resume_job *job, struct tp_err *err);

/* Say why an interrupted run is not continued: it is of another request, if there is one; or
 * resume_continue failed. */
void resume_note_other(const struct resume *r, const struct resume_job *job);
void resume_note_failed(const struct tp_err *why, const struct resume_job *job);

/* Begin the step of a checkpoint: resume the interrupted run if it fits, else start over.
 * Afterwards job->copy->planned is what is left to do. What the interrupted run wrote is read back
 * first (reshard/read_back.h). TP_E_STOPPED: a signal came meanwhile, and everything is as it was.
 * After any other failure nothing is left. */
tp_status resume_begin(struct resume *r, struct ckpt_transaction *t,
                       const struct ckpt_begin_request *request, const struct resume_job *job,
                       struct checkpoint_target *target, struct tp_err *err);

/* Execute all rounds, and record progress between them. TP_E_STOPPED: a signal asked for it, and
 * everything that is complete has been recorded. */
tp_status resume_run(struct resume *r, const struct resume_job *job, struct tp_err *err);

/* What was copied, after copy_job_prove; spec, step and checksums are left to the caller. */
struct copy_totals resume_totals(const struct resume *r, const struct copy_job *copy);

void resume_free(struct resume *r);

#endif
