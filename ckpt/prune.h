/*
 * ckpt/prune.h - deletes old steps of a root, and never the last intact one.
 */
#ifndef CKPT_PRUNE_H
#define CKPT_PRUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/root_lock.h"
#include "core/arena.h"
#include "core/err.h"
#include "core/progress.h"

struct ckpt_prune_request {
    const char *root;
    int keep;           /* keep this many of the newest intact steps; at least 1 */
    int64_t keep_every; /* keep also each step that is a multiple of this; 0: none */
    bool dry_run;       /* delete nothing */
    /* Threads that read and check every byte of the steps that are kept (ckpt/verify.h). 0: nothing
     * is read, and a step counts as intact when its manifest can be read and each of its files has
     * its length. */
    int verify_jobs;
    /* The step that the caller has just saved: it is kept and counts without being read again.
     * Later steps are not of this run, which began before them, so they are neither counted nor
     * deleted. NULL: none. */
    const int64_t *saved;
    int64_t from;               /* steps before this one are neither counted nor deleted */
    struct progress *progress;  /* counts the bytes that are read of a step; NULL: none */
    struct root_lock_wait wait; /* while another process holds the root's lock */
};

/* A step that does not count, and stays. */
struct ckpt_damaged_step {
    const char *name, *finding; /* the first of its findings, a sentence */
    int findings;
};

/* A step of a store that stays although it would be deleted, or is not complete. */
struct ckpt_left_step {
    const char *name, *why; /* a sentence */
};

/* What was done, or would be. Everything is in the arena. */
struct ckpt_pruned {
    const char **names; /* [n] of steps and temporary directories that were deleted, in order */
    int n;
    struct ckpt_damaged_step *damaged; /* [n_damaged] newest first */
    int n_damaged;
    struct ckpt_left_step *left; /* [n_left] newest first */
    int n_left;
    int n_kept;             /* intact steps that are kept */
    int64_t verified_bytes; /* of payload that were read */
};

/* In a store, where others may write meanwhile: one more intact step is kept, if none of those that
 * are kept is of the job that owns the root, and later steps than the newest intact one of this job
 * are not deleted (ckpt/store_prune.h). A step's manifest is deleted first.
 *
 * Delete intact steps that are not kept, and the temporary directories of dead writers. A damaged
 * step does not count as kept, and stays, so that people can examine it. A step is first renamed to
 * a temporary directory, so no reader sees half of it. After a failure *out has what was deleted
 * nevertheless. TP_E_IO: something cannot be deleted, as on NFS what another process reads.
 * TP_E_CORRUPT: no step is intact; nothing was deleted. TP_E_STALE: another program removed or
 * replaced a step that is kept while it was verified; nothing was deleted. In a store also: a new
 * job has claimed the root; what had not been deleted stays. */
tp_status ckpt_prune(struct ckpt_pruned *out, const struct ckpt_prune_request *request,
                     struct arena *arena, struct tp_err *err);

#endif
