/*
 * ckpt/commit.h - a checkpoint root, its steps, and the all-or-nothing way to add one.
 *
 *     ROOT/step-00000500/            a committed step: manifest.json and shards
 *     ROOT/step-00000500.tmp-<id>/   one being written, or left by a crash
 *     ROOT/epoch                     number of the newest job; an older job's commit is refused
 *     ROOT/lock                      held (flock) over check and rename
 *     ROOT/latest                    symbolic link to the newest step; a convenience for people
 *
 * Order of a commit: shards written and fsynced, manifest.json written and fsynced, the temporary
 * directory fsynced, renamed to step-N (exchanged when step-N exists and force is set), ROOT
 * fsynced. A reader sees the old or the new step, never a mixture.
 */
#ifndef CKPT_COMMIT_H
#define CKPT_COMMIT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/manifest.h"
#include "core/arena.h"
#include "core/err.h"

/* ---- finding ---- */

struct ckpt_step {
    int64_t step;
    char name[NAME_MAX + 1];
    bool complete; /* manifest.json parses and every shard is there with its length; else it is a
                      temporary or damaged */
};

/* The step directories of a root, ascending by step; temporaries of crashed saves are listed as
 * incomplete. TP_E_NOTFOUND: no such directory; an empty list is no error. */
tp_status ckpt_list(struct ckpt_step **steps, int *n, const char *root, struct arena *arena,
                    struct tp_err *err);

/* What CKPT on a command line means: a root (its newest complete step, or `step` when >= 0) or a
 * step directory. dir gets the step directory, m its manifest.
 * When newer steps of a root were passed over since they are damaged, the result is TP_OK and
 * err->msg says which and why (else it is left as it was): print it, never fall back in silence.
 * TP_E_NOTFOUND: no such path, no complete step, or a folder that is no checkpoint (what was looked
 * for is said); TP_E_CORRUPT: the step asked for is damaged. */
tp_status ckpt_open(char dir[PATH_MAX], struct manifest *m, const char *path, int64_t step,
                    struct arena *arena, struct tp_err *err);

/* As ckpt_open, for the directory alone, whether what is in it can be read or not: the newest step
 * that is no temporary, or `step`. */
tp_status ckpt_locate(char dir[PATH_MAX], const char *path, int64_t step, struct tp_err *err);

/* ---- adding ---- */

/* Whether steps can be added to a root, which need not be there yet. TP_E_USAGE: it is a step
 * itself (one put into it would change what was saved, and would not be found), or no directory. */
tp_status ckpt_check_root(const char *root, struct tp_err *err);

struct ckpt_txn {
    char root[PATH_MAX];
    char tmp[PATH_MAX]; /* where shards and manifest go: ROOT/step-N.tmp-<save id> */
    char save_id[SAVE_ID_TEXT];
    int64_t step, epoch;
    bool force;
    bool made_root; /* the root was not there before */
    int alive; /* descriptor that holds a lock on tmp: who can take it knows that we are dead */
};

/* Take the next epoch of a root (made if absent; see ckpt_check_root): from now on jobs with older
 * ones cannot commit. Once a job. */
tp_status ckpt_claim(int64_t *epoch, const char *root, struct tp_err *err);

/* Whether somebody holds ROOT/lock now, for a caller that must not wait: `who` says who. A root that
 * is not there, or cannot be locked, is not busy. */
bool ckpt_is_busy(const char *root, struct tp_err *who);

/* The epoch of a root's newest job, without claiming anything: who adds a step that belongs to what
 * is there (tp-reshard, import) begins with it. 0: no job has claimed it, or there is no such
 * root. */
tp_status ckpt_epoch(int64_t *epoch, const char *root, struct tp_err *err);

/* Begin a step: refuses at once with TP_E_EXISTS when step-N is there and force is not set, and
 * what ckpt_check_root refuses; makes ROOT and the temporary directory; removes temporaries of dead
 * writers. Ends with ckpt_commit that succeeds, or with ckpt_abort. Other processes of the job may
 * write into tmp (a copy of the transaction tells them where); begin, commit and abort belong to
 * one. */
tp_status ckpt_begin(struct ckpt_txn *t, const char *root, int64_t step, int64_t epoch, bool force,
                     struct tp_err *err);

/* Whether a temporary directory is one to go on with. */
typedef bool (*ckpt_fits_fn)(void *ctx, const char *tmp);

/* As ckpt_begin, but go on with what a dead writer left of the same step, when fits(ctx, tmp) says
 * so: *resumed. fits is called under ROOT/lock, and the writer is known to be dead.
 * TP_E_EXISTS also when a writer of the step is alive. t->made_root is false then: who wants to
 * know has to keep it. */
tp_status ckpt_begin_again(struct ckpt_txn *t, bool *resumed, const char *root, int64_t step,
                           int64_t epoch, bool force, ckpt_fits_fn fits, void *ctx,
                           struct tp_err *err);

/* Call fits for the step's temporaries, of writers dead or alive, until it says yes. Only a look:
 * nothing is locked, so the answer may be old. A root that is not there has none. */
void ckpt_look_tmp(const char *root, int64_t step, ckpt_fits_fn fits, void *ctx);

/* Leave what was begun as it is, for another process to go on with. */
void ckpt_leave(struct ckpt_txn *t);

/* Write the manifest (save_id, step and epoch are the transaction's) and make the step appear.
 * TP_E_STALE: a newer job has claimed the root. On failure nothing has appeared. */
tp_status ckpt_commit(struct ckpt_txn *t, struct manifest *m, struct tp_err *err);

/* Remove what was begun. Also for a transaction that is all zeroes, committed or aborted already.
 */
void ckpt_abort(struct ckpt_txn *t);

/* Delete complete steps but for the newest `keep` >= 1 (and those divisible by keep_every when >
 * 0), and temporaries of dead writers. A step is renamed to a temporary first, so that it is never
 * half there. Damaged steps are left for people to look at. `each` hears every name, before it
 * goes. */
tp_status ckpt_prune(const char *root, int keep, int64_t keep_every, bool dry_run,
                     void (*each)(void *ctx, const char *name), void *ctx, struct tp_err *err);

#endif
