/*
 * ckpt/store_step.h - adds a step to a checkpoint root in an S3-compatible store: all of it or
 * nothing.
 *
 * A store cannot rename, but it creates an object only if there is none (If-None-Match). Shards are
 * uploaded to ROOT/step-N and are not visible until all are complete (ckpt/shard.h, shard_appear).
 * Then they appear, and manifest.json is created last. Its presence is the commit, as for local
 * steps. Of two writers of one step at most one succeeds.
 */
#ifndef CKPT_STORE_STEP_H
#define CKPT_STORE_STEP_H

#include <limits.h>
#include <stdbool.h>

#include "ckpt/manifest.h"
#include "core/err.h"

struct store_step {
    char root[PATH_MAX], dir[PATH_MAX];
    int64_t step, epoch;
    bool replaces; /* the step exists */
    char save_id[SAVE_ID_TEXT];
    char cleaner[SAVE_ID_TEXT]; /* the writer that last removed leftovers, maybe this one; "": none
                                   has */
};

/* TP_E_USAGE: the root is a step itself, has the name of one, or is not in a store. */
tp_status store_step_check_root(const char *root, struct tp_err *err);

/* Begin. Objects that a dead writer of this step left are removed. TP_E_EXISTS: the step exists,
 * and force is not set. TP_E_USAGE: as store_step_check_root. */
tp_status store_step_begin(struct store_step *s, const char *root, int64_t step, bool force,
                           struct tp_err *err);

/* Right before the shards appear: check that this writer may still commit (TP_E_STALE,
 * TP_E_EXISTS). With force, remove the step that is replaced, its manifest first. Not in one go
 * with the commit: if the writer dies in between, the step is gone. So only a writer that owns the
 * root may do it, such as a trainer that resumed from an older step. */
tp_status store_step_clear(const struct store_step *s, struct tp_err *err);

/* Write the manifest, with the save id, step and epoch, when all its shards have appeared.
 * TP_E_STALE: a newer job has claimed the root. TP_E_EXISTS: another writer was faster. After a
 * failure there is no manifest of this save; the caller removes its shards if store_step_owns. */
tp_status store_step_commit(const struct store_step *s, struct manifest *m, struct tp_err *err);

/* Whether the shards that this writer made to appear are its own: no other writer has begun to
 * remove leftovers, after which shards of the same names may be that one's. False also when the
 * store does not answer; then the next writer of the step removes them. */
bool store_step_owns(const struct store_step *s);

#endif
