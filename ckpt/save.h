/*
 * ckpt/save.h - a step that is being added to a root, in a local folder (ckpt/transaction.h) or in
 * a store (ckpt/store_step.h), for a writer that does not care which.
 *
 *     ckpt_save_begin; each rank writes its shard to ckpt_save_dir; ckpt_save_clear; each rank
 * calls shard_appear; ckpt_save_commit
 *
 * ckpt_save_clear and shard_appear do nothing for local folders.
 */
#ifndef CKPT_SAVE_H
#define CKPT_SAVE_H

#include <stdbool.h>

#include "ckpt/store_step.h"
#include "ckpt/transaction.h"

struct ckpt_save {
    bool in_store;
    struct ckpt_transaction local;
    struct store_step store;
};

/* As ckpt_begin, or store_step_begin. */
tp_status ckpt_save_begin(struct ckpt_save *s, const struct ckpt_begin_request *request,
                          struct tp_err *err);

/* The directory to which shards are written. Borrowed. */
const char *ckpt_save_dir(const struct ckpt_save *s);

/* When all shards are finished, and before the first appears: as store_step_clear. */
tp_status ckpt_save_clear(struct ckpt_save *s, struct tp_err *err);

/* As ckpt_commit, or store_step_commit. */
tp_status ckpt_save_commit(struct ckpt_save *s, struct manifest *m, struct tp_err *err);

/* As store_step_owns: whether shards that have appeared are to be removed after a failure. */
bool ckpt_save_owns(const struct ckpt_save *s);

/* As ckpt_abort. Shards that have appeared in a store are their writers' to remove. */
void ckpt_save_abort(struct ckpt_save *s);

/* Whether steps can be added to a root: ckpt_check_root, or store_step_check_root. */
tp_status ckpt_save_check_root(const char *root, struct tp_err *err);

#endif
