/*
 * ckpt/root.h - a checkpoint root and its steps.
 *
 *     ROOT/step-00000500/            a committed step: manifest.json and shards
 *     ROOT/step-00000500.tmp-<id>/   a step that is being written, or that a crash left
 *     ROOT/epoch                     number of the newest job (ckpt/epoch.h)
 *     ROOT/owner                     the live job that the root belongs to (ckpt/root_owner.h)
 *     ROOT/lock                      held (flock) while a step is checked and renamed
 *     ROOT/latest                    symbolic link to the newest step, for people
 */
#ifndef CKPT_ROOT_H
#define CKPT_ROOT_H

#include <limits.h>
#include <stdint.h>

#include "ckpt/manifest.h"
#include "ckpt/step.h"
#include "core/arena.h"
#include "core/err.h"

/* The steps and temporary directories of a root, ascending by step. An empty list is not an error.
 * TP_E_NOTFOUND: there is no such directory. */
tp_status ckpt_list(struct ckpt_step **steps, int *n, const char *root, struct arena *arena,
                    struct tp_err *err);

/* The same without `complete`, for which ckpt_list reads every manifest. */
tp_status ckpt_list_names(struct ckpt_step **steps, int *n, const char *root, struct arena *arena,
                          struct tp_err *err);

/* A step that ckpt_open found. */
struct ckpt_found {
    char dir[PATH_MAX];
    struct manifest manifest; /* in the arena of ckpt_open */
    char note[TP_ERR_MAX]; /* "" or a sentence: newer steps are damaged and were skipped, and why.
                              Print it; a fallback must not be silent. */
};

/* Open what CKPT on a command line names: a root (its newest complete step, or `step` when that is
 * not negative) or a step directory.
 * TP_E_NOTFOUND: no such path, no complete step, or not a checkpoint; the message says what was
 * expected. TP_E_CORRUPT: the requested step is damaged. TP_E_IO also when another program removed
 * or replaced it meanwhile; for the newest step of a root it is looked for again first. */
tp_status ckpt_open(struct ckpt_found *out, const char *path, int64_t step, struct arena *arena,
                    struct tp_err *err);

/* The same for the directory alone, whether it can be read or not: the newest step that is not a
 * temporary directory (one of those where there is no other), or `step`. Of a step directory only
 * the number is checked. */
tp_status ckpt_locate(char dir[PATH_MAX], const char *path, int64_t step, struct tp_err *err);

/* The same, but TP_E_NOTFOUND for a root that has temporary directories only: its first save is at
 * work or was interrupted, and nothing in it is damaged. In a store, steps without a manifest are
 * passed over for the same reasons. */
tp_status ckpt_locate_saved(char dir[PATH_MAX], const char *path, int64_t step, struct tp_err *err);

/* Check that steps can be added to a root, which need not exist. TP_E_USAGE: it is a step itself (a
 * step inside a step would not be found, and would change what was saved), has the name of one, or
 * is not a directory. */
tp_status ckpt_check_root(const char *root, struct tp_err *err);

/* ---- inside ckpt/ only; under ROOT/lock ---- */

/* Remove the temporary files that a writer of ROOT/epoch, ROOT/latest or ROOT/owner left when it
 * died. */
void root_remove_leftovers(const char *root);

/* Point ROOT/latest to the step with the highest number. Only a convenience; failure is ignored. */
void root_update_latest(const char *root);

/* Remove a root that has nothing in it but its lock. Takes ROOT/lock itself; does nothing when
 * another process holds it. */
void root_remove_if_empty(const char *root);

#endif
