/*
 * ckpt/root.h - what a checkpoint root has once: its lock, its epoch, its names. Inside ckpt/ only.
 *
 * Two locks, both flock, both free when their holder dies. ROOT/lock is held for moments, over
 * check and rename. Every temporary directory is locked by its writer for as long as it writes
 * (ckpt/tmp.h), so that leftovers of the dead can be told from the work of the living. Where a file
 * system has no flock, leftovers stay, and two writers of one step are told apart by rename alone,
 * which fails when the target exists.
 */
#ifndef CKPT_ROOT_H
#define CKPT_ROOT_H

#include <stdbool.h>

#include "core/err.h"

/* Whether this errno of flock says that the file system has none. */
bool root_lock_unsupported(int error);

/* Take ROOT/lock, waiting for it; *fd is closed to give it back. TP_E_IO, with the holder's name:
 * it will not come by waiting, since the holder has been stopped for ten seconds, or is on no
 * process's list here and has kept it for ten minutes. */
tp_status root_lock(int *fd, const char *root, struct tp_err *err);

/* Remove what was to become ROOT/epoch or ROOT/latest when its writer died. Under ROOT/lock. */
void root_reap_names(const char *root);

/* ROOT/latest -> the step with the highest number. A convenience: failure is none. Under
 * ROOT/lock. */
void root_point_latest(const char *root);

/* Remove a root that holds nothing but its lock; others stay. */
void root_remove_empty(const char *root);

#endif
