/*
 * ckpt/root_lock.h - ROOT/lock, which a process holds (flock) while it checks and renames.
 *
 * The lock is free again when its holder dies. On a file system without flock it is not taken; then
 * only the rename protects two writers of one step, because it fails when the target exists.
 */
#ifndef CKPT_ROOT_LOCK_H
#define CKPT_ROOT_LOCK_H

#include <stdbool.h>

#include "core/err.h"

/* Take the lock and wait for it if necessary; close *fd to release it. TP_E_IO names the holder
 * when waiting is pointless: the holder has been stopped for ten seconds, or is no process of this
 * host and has held the lock for ten minutes. */
tp_status root_lock(int *fd, const char *root, struct tp_err *err);

/* Whether a process holds the lock now, for a caller that must not wait; *holder then has a
 * sentence that names it. False for a root that does not exist or cannot be locked. */
bool root_lock_is_held(const char *root, struct tp_err *holder);

/* Whether this errno of flock means that the file system has no locks. */
bool root_lock_unsupported(int error);

#endif
