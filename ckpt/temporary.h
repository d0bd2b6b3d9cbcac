/*
 * ckpt/temporary.h - the temporary directories of a root, ROOT/step-N.tmp-<save id>. Other folders
 * use only ckpt_list_temporaries and temporary_save_id.
 *
 * The writer of a temporary directory holds a lock (flock) on it as long as it lives. The lock
 * shows whether the writer is alive or has left the directory behind. On a file system without
 * flock, directories of dead writers are not removed. NFS has locks of files, but a directory is
 * locked on its own host only, so two hosts must not write to one root at the same time.
 */
#ifndef CKPT_TEMPORARY_H
#define CKPT_TEMPORARY_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/manifest.h"
#include "core/arena.h"
#include "core/err.h"

/* The temporary directories of a step, whether their writers live or not, as paths ROOT/NAME in the
 * arena. Nothing is locked, so the list may be out of date. A root that does not exist has none. */
tp_status ckpt_list_temporaries(const char ***paths, int *n, const char *root, int64_t step,
                                struct arena *arena, struct tp_err *err);

/* One that this process holds. */
struct temporary {
    char path[PATH_MAX]; /* "": none */
    char save_id[SAVE_ID_TEXT];
    int lock_fd; /* descriptor of the directory, which holds the lock; -1: none */
};

/* A new random save id. */
tp_status temporary_save_id(char id[SAVE_ID_TEXT], struct tp_err *err);

/* Create one with a new save id and lock it. Under ROOT/lock. After a failure too, t->path and
 * t->lock_fd say what there is to remove. */
tp_status temporary_make(struct temporary *t, const char *root, int64_t step, struct tp_err *err);

/* Take over the directory `wanted` (a path of ckpt_list_temporaries, or NULL: none) when its writer
 * is dead; otherwise t is unchanged. TP_E_EXISTS: a writer of this step is alive. Under
 * ROOT/lock. */
tp_status temporary_adopt(struct temporary *t, const char *root, int64_t step, const char *wanted,
                          struct tp_err *err);

/* Remove a temporary directory when its writer is dead; *dead says so. dry_run: do not remove it.
 * Under ROOT/lock, so that none is seen between its mkdir and its flock. */
tp_status temporary_remove_dead(const char *root, const char *name, bool dry_run, bool *dead,
                                struct tp_err *err);

/* Remove all that dead writers left, but for what the system does not let go: on NFS, what another
 * process reads. Under ROOT/lock. */
tp_status temporary_remove_all_dead(const char *root, struct tp_err *err);

/* Unlock the directory and leave it as it is. Does nothing for one that is all zeroes. */
void temporary_release(struct temporary *t);

#endif
