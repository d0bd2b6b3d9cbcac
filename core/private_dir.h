/*
 * core/private_dir.h - directories that only their user can change.
 *
 * Where every user may write (/dev/shm, /tmp), another user can make a directory of an expected
 * name first, or put a symbolic link in the place of a directory between two system calls.
 * Therefore a private directory is made with a random name and mode 0700, and is opened once,
 * without following a symbolic link. Owner and mode are read from the descriptor, and its files are
 * opened, renamed and removed relative to it.
 */
#ifndef CORE_PRIVATE_DIR_H
#define CORE_PRIVATE_DIR_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"

/* Which directory it is, whatever its name; zeroes: not known. */
struct private_dir_id {
    int64_t dev, ino;
};

/* Write PARENT/PREFIX and 16 random hexadecimal digits. TP_E_IO: no random numbers. */
tp_status private_dir_name(char path[PATH_MAX], const char *parent, const char *prefix,
                           struct tp_err *err);

/* Make the directory, which must not exist, with mode 0700, and open it. The caller closes *fd.
 * TP_E_EXISTS: there is something of this name. */
tp_status private_dir_make(int *fd, const char *path, struct tp_err *err);

/* Open a directory. TP_E_NOTFOUND: there is none. TP_E_USAGE: it is a symbolic link or no
 * directory, it belongs to another user, or other users can write to it. */
tp_status private_dir_open(int *fd, const char *path, struct tp_err *err);

/* Open a directory, or make it and its parents if there is none. */
tp_status private_dir_ensure(int *fd, const char *path, struct tp_err *err);

/* Which directory is open. */
struct private_dir_id private_dir_id(int fd);

/* Whether `id` is known and names the directory that is open. */
bool private_dir_is(int fd, const struct private_dir_id *id);

/* Open a regular file in the open directory, with these flags of open(2), without following a
 * symbolic link; it is made with mode 0600. `path` is that of the directory, for messages.
 * TP_E_NOTFOUND. TP_E_USAGE: it is not a regular file, or it belongs to another user. */
tp_status private_dir_file(int *fd, int dir, const char *path, const char *name, int flags,
                           struct tp_err *err);

/* Read a whole file of the open directory into the arena, with a 0 byte after it. TP_E_NOTFOUND.
 * TP_E_USAGE: as private_dir_file. TP_E_CORRUPT: it is longer than max_bytes. */
tp_status private_dir_read(char **data, size_t *size, int dir, const char *path, const char *name,
                           size_t max_bytes, struct arena *arena, struct tp_err *err);

/* Replace a file of the open directory, so that a reader sees the old or the new content. */
tp_status private_dir_replace(int dir, const char *path, const char *name, const void *data,
                              size_t size, struct tp_err *err);

/* Remove the directory at `path` and all in it, if it is the one that is open as `dir`. Directories
 * of other users are not entered. Closes `dir`. */
tp_status private_dir_remove(int dir, const char *path, struct tp_err *err);

#endif
