/*
 * ckpt/transaction.h - adds a step to a checkpoint root: all of it or nothing.
 *
 * A commit takes these steps: shards are written and fsynced; manifest.json is written and fsynced;
 * the temporary directory is fsynced and renamed to step-N (exchanged with it when step-N exists
 * and force is set); ROOT is fsynced. A reader sees the old or the new step, never a mixture.
 */
#ifndef CKPT_TRANSACTION_H
#define CKPT_TRANSACTION_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/manifest.h"
#include "ckpt/root_lock.h"
#include "ckpt/temporary.h"
#include "core/err.h"

struct ckpt_begin_request {
    const char *root;
    int64_t step;
    int64_t epoch;      /* of this job; see ckpt/epoch.h */
    bool force;         /* replace step-N when it exists */
    bool exclusive;     /* TP_E_EXISTS when another process is writing the same step */
    const char *resume; /* exclusive: continue in this temporary directory, when its writer is dead;
                           NULL: none */
    struct root_lock_wait wait; /* for the root's lock, also of the commit */
};

struct ckpt_transaction {
    char root[PATH_MAX];
    struct temporary tmp; /* tmp.path is where shards and manifest go */
    int64_t step, epoch;
    bool force;
    struct root_lock_wait wait;
    const char *const *scratch; /* set by the caller: files of its own in tmp, which are removed
                                   right before the step appears; ends with NULL. NULL: none */
    bool resumed;               /* tmp is the one that was to be continued */
    bool made_root; /* the root did not exist before; false after resuming, so the caller must
                       remember it */
};

/* Begin a step: create the root and the temporary directory, and remove what dead writers left. It
 * ends with a ckpt_commit that succeeds, ckpt_abort or ckpt_suspend. Other processes of the job may
 * write into the temporary directory (give them a copy of the transaction), but one process begins
 * and ends it.
 * TP_E_EXISTS: step-N exists and force is not set; TP_E_STALE: it does, and a newer job owns the
 * root. TP_E_USAGE: as ckpt_check_root. TP_E_STOPPED: a request to stop ended the wait for the
 * lock; also of ckpt_commit. */
tp_status ckpt_begin(struct ckpt_transaction *t, const struct ckpt_begin_request *request,
                     struct tp_err *err);

/* Write the manifest, with the transaction's save id, step and epoch, and make the step appear.
 * TP_E_STALE: a newer job has claimed the root. After a failure nothing has appeared. */
tp_status ckpt_commit(struct ckpt_transaction *t, struct manifest *m, struct tp_err *err);

/* Remove what was begun. Also for a transaction that is all zeroes, or has ended already. */
void ckpt_abort(struct ckpt_transaction *t);

/* Leave what was begun as it is, for a later process to resume. */
void ckpt_suspend(struct ckpt_transaction *t);

#endif
