/*
 * reshard/atomic_folder.h - a new folder that appears complete or not at all. It is written under a
 * temporary name in the same parent folder, and then renamed.
 *
 * The writer holds a lock (flock) on the temporary folder as long as it lives. What a writer that
 * was killed left behind is therefore recognized, and taken over or removed when the next one
 * begins the same folder. On a file system without flock it stays.
 */
#ifndef RESHARD_ATOMIC_FOLDER_H
#define RESHARD_ATOMIC_FOLDER_H

#include <limits.h>
#include <stdbool.h>

#include "core/err.h"

struct atomic_folder {
    char dir[PATH_MAX]; /* where it will appear */
    char tmp[PATH_MAX]; /* where to write: DIR.tmp-<32 hexadecimal digits>; "": there is nothing to
                           remove */
    int lock_fd;        /* holds the lock, while locked */
    bool locked, force;
    bool resumed;        /* tmp was taken over from a dead writer */
    const char *scratch; /* set by the caller: a file of its own in tmp, which is removed right
                            before the folder appears; NULL: none */
};

/* Whether `dir`, which exists and is not an empty folder, can be replaced. TP_E_EXISTS: not, and
 * the message says why. */
typedef tp_status atomic_folder_replaceable(const char *dir, struct tp_err *err);

/* Whether to take over the temporary folder of a dead writer; at most one is. */
struct atomic_folder_heir {
    bool (*wants)(void *ctx, const char *path);
    void *ctx;
};

/* Begin. Parent directories are created. What dead writers of dir left is removed, except what
 * `heir` wants (NULL: nothing). Where dir is a symbolic link to a folder, f->dir is that folder.
 * TP_E_USAGE: dir is a mount point, or ends in "." or "..". TP_E_EXISTS: dir exists, is not an
 * empty folder, and is not to be replaced (no `force`) or is not `replaceable` (NULL: always); the
 * message says which. */
tp_status atomic_folder_begin(struct atomic_folder *f, const char *dir, bool force,
                              atomic_folder_replaceable *replaceable,
                              const struct atomic_folder_heir *heir, struct tp_err *err);

/* The errors that atomic_folder_begin finds before it creates anything. */
tp_status atomic_folder_check(const char *dir, bool force, atomic_folder_replaceable *replaceable,
                              struct tp_err *err);

/* Leave what was begun as it is, for a later process to take over. */
void atomic_folder_suspend(struct atomic_folder *f);

/* Make the folder appear: fsync, rename (or exchange, then remove what was there). */
tp_status atomic_folder_commit(struct atomic_folder *f, struct tp_err *err);

/* Remove what was begun, and unlock. Also for a folder that is all zeroes or committed. */
void atomic_folder_abort(struct atomic_folder *f);

#endif
