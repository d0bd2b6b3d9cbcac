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

/* What happens while a call waits for the lock. All zeroes: it waits in silence. A request to stop
 * (core/stop.h) ends the wait, once it has lasted stop_after_s. */
struct root_lock_wait {
    void (*notify)(void *ctx, const char *sentence); /* called once, when the wait has lasted a
                                                     second; the sentence names the holder */
    void *ctx;
    double stop_after_s; /* for a save that a request to stop has caused: time for others to
                            release the lock */
};

/* Take the lock and wait for it if necessary; close *fd to release it. Only those who may write to
 * the root can lock it (ckpt/access.h). TP_E_STOPPED: the wait was ended on request. TP_E_IO names
 * the holder when waiting is pointless: the holder has been stopped for ten seconds, or is no
 * process of this host and has held the lock for ten minutes. */
tp_status root_lock(int *fd, const char *root, const struct root_lock_wait *wait,
                    struct tp_err *err);

/* The same for a writer: creates the root if necessary, also when the process that held the lock
 * has removed it, because nothing was saved there. */
tp_status root_lock_make(int *fd, const char *root, const struct root_lock_wait *wait,
                         struct tp_err *err);

/* Take the lock if it is free. False: it is not, or cannot be locked. */
bool root_lock_try(int *fd, const char *root);

/* Whether a process holds the lock now, for a caller that must not wait; *holder then has a
 * sentence that names it. False for a root that does not exist or cannot be locked. */
bool root_lock_is_held(const char *root, struct tp_err *holder);

/* Whether this errno of flock means that the file system has no locks. */
bool root_lock_unsupported(int error);

#endif
