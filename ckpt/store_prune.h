/*
 * ckpt/store_prune.h - which steps of a root in a store can be removed while others write to it,
 * and their removal. Inside ckpt/ only, for prune.c.
 *
 * A store has no lock that keeps writers away meanwhile. The job that owns the root (its epoch is
 * the newest, ckpt/epoch.h) saves steps in ascending order; if it began from an older step, it
 * replaces the later ones. So it writes no step before the newest one that it has saved, and only
 * such steps are removed. The epoch is checked again right before each removal. A new job would
 * have to claim the root, train and save the same step between this check and the removal.
 */
#ifndef CKPT_STORE_PRUNE_H
#define CKPT_STORE_PRUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

struct store_prune {
    const char *root; /* borrowed */
    int64_t epoch;    /* of the job that owns it; 0: none has claimed it */
};

/* Begin, before the root is listed. TP_E_USAGE: it is one step. */
tp_status store_prune_begin(struct store_prune *p, const char *root, struct tp_err *err);

/* Whether the job that owns the root has saved this step, which has a manifest. */
tp_status store_prune_is_owned(bool *is, const struct store_prune *p, const char *name,
                               struct tp_err *err);

/* What there is of a step that has no manifest. */
enum store_prune_rest {
    STORE_REST_NONE,   /* no shard */
    STORE_REST_SHARDS, /* shards of a writer that lives, or died */
    STORE_REST_PRUNED  /* what store_prune_remove left that was interrupted */
};
tp_status store_prune_rest(enum store_prune_rest *rest, const struct store_prune *p,
                           const char *name, struct tp_err *err);

/* Remove a step, its manifest first, so that no reader opens half of it; or the rest of one
 * (STORE_REST_PRUNED). *deleted is false when another program removed or replaced it first.
 * TP_E_STALE: a newer job has claimed the root; the step stays. */
tp_status store_prune_remove(bool *deleted, const struct store_prune *p, const char *name,
                             struct tp_err *err);

#endif
