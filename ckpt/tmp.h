/*
 * ckpt/tmp.h - the temporary directories of a root, ROOT/step-N.tmp-<save id>: made, judged and
 * removed. Each is locked (flock) by its writer for as long as it lives. Inside ckpt/ only.
 */
#ifndef CKPT_TMP_H
#define CKPT_TMP_H

#include <stdbool.h>

#include "ckpt/commit.h"

/* A new random save id. */
tp_status tmp_save_id(char id[SAVE_ID_TEXT], struct tp_err *err);

/* Make t->tmp, named after t->step and t->save_id, and hold its lock in t->alive. Under ROOT/lock.
 * After a failure too t->tmp and t->alive say what there is to remove. */
tp_status tmp_make(struct ckpt_txn *t, struct tp_err *err);

/* Go on with a temporary of t->step whose writer is dead, when fits says so: t->tmp, t->save_id and
 * t->alive become its own; else t is left as it is. TP_E_EXISTS: a writer of the step is alive.
 * Under ROOT/lock. */
tp_status tmp_adopt(struct ckpt_txn *t, ckpt_fits_fn fits, void *ctx, struct tp_err *err);

/* Remove a temporary when its writer is dead: *dead. Under ROOT/lock, so that none is met between
 * its mkdir and its flock. */
tp_status tmp_reap(const char *root, const char *name, bool dry_run, bool *dead,
                   struct tp_err *err);

/* Remove all that dead writers left. Under ROOT/lock. */
tp_status tmp_reap_all(const char *root, struct tp_err *err);

#endif
