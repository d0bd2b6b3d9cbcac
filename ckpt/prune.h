/*
 * ckpt/prune.h - deletes old steps of a root.
 */
#ifndef CKPT_PRUNE_H
#define CKPT_PRUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"

struct ckpt_prune_request {
    const char *root;
    int keep;           /* keep this many of the newest complete steps; at least 1 */
    int64_t keep_every; /* keep also each step that is a multiple of this; 0: none */
    bool dry_run;       /* delete nothing */
};

/* The names of the steps and temporary directories that were deleted, or would be, in order. */
struct ckpt_pruned {
    const char **names; /* in the arena */
    int n;
};

/* Delete complete steps that are not kept, and the temporary directories of dead writers. A step is
 * first renamed to a temporary directory, so no reader sees half of it. Damaged steps stay, so that
 * people can examine them. After a failure *out has what was deleted before it. */
tp_status ckpt_prune(struct ckpt_pruned *out, const struct ckpt_prune_request *request,
                     struct arena *arena, struct tp_err *err);

#endif
