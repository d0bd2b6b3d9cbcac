/*
 * ckpt/store_step.h - adds a step to a checkpoint root in an S3-compatible store: all of it or
 * nothing.
 *
 * A store cannot rename, but it creates an object only if there is none (If-None-Match). Shards are
 * uploaded to ROOT/step-N and are not visible until all are complete (ckpt/shard.h, shard_appear).
 * Then they appear, and manifest.json is created last. Its presence is the commit, as for local
 * steps. Of two writers of one step at most one succeeds. A step is never replaced.
 */
#ifndef CKPT_STORE_STEP_H
#define CKPT_STORE_STEP_H

#include <limits.h>

#include "ckpt/manifest.h"
#include "core/err.h"

struct store_step {
    char root[PATH_MAX], dir[PATH_MAX];
    int64_t step, epoch;
    char save_id[SAVE_ID_TEXT];
};

/* Begin. Objects that a dead writer of this step left are removed. TP_E_EXISTS: the step exists.
 * TP_E_USAGE: the root is a step itself, or not in a store. */
tp_status store_step_begin(struct store_step *s, const char *root, int64_t step,
                           struct tp_err *err);

/* Write the manifest, with the save id, step and epoch, when all its shards have appeared.
 * TP_E_STALE: a newer job has claimed the root. TP_E_EXISTS: another writer was faster. After a
 * failure there is no manifest of this save; the caller removes its shards. */
tp_status store_step_commit(const struct store_step *s, struct manifest *m, struct tp_err *err);

#endif
