/*
 * core/file.h - complete reads and writes, and durable replacement of files.
 *
 * A call transfers all its bytes or fails: short transfers and EINTR are retried, other errors are
 * not, and a failed fsync is final. Messages contain the path.
 */
#ifndef CORE_FILE_H
#define CORE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"

/* Read exactly n bytes at `offset`. TP_E_CORRUPT: the file ends before that; otherwise TP_E_IO. */
tp_status file_read_at(int fd, const char *path, int64_t offset, void *buf, size_t n,
                       struct tp_err *err);

/* Write exactly n bytes at `offset`. */
tp_status file_write_at(int fd, const char *path, int64_t offset, const void *buf, size_t n,
                        struct tp_err *err);

/* Open a regular file for reading; *size is its length. A FIFO, device or directory is refused
 * without blocking (TP_E_CORRUPT). TP_E_NOTFOUND: there is no such file. Symbolic links are
 * followed: this is for files that people name, and model folders in Hugging Face's cache consist
 * of links. */
tp_status file_open_read(int *fd, int64_t *size, const char *path, struct tp_err *err);

/* The same for a file in a folder that our programs write. There a symbolic link is damage
 * (TP_E_CORRUPT), because it may lead anywhere. */
tp_status file_open_own(int *fd, int64_t *size, const char *path, struct tp_err *err);

/* Read a whole file into the arena, with a 0 byte after it. TP_E_CORRUPT: it is longer than
 * max_bytes. Opens as file_open_read. */
tp_status file_read_all(char **data, size_t *size, const char *path, size_t max_bytes,
                        struct arena *arena, struct tp_err *err);

/* The same for a file that is an argument of a command: too long or not a file is a wrong request,
 * TP_E_USAGE instead of TP_E_CORRUPT. */
tp_status file_read_argument(char **data, size_t *size, const char *path, size_t max_bytes,
                             struct arena *arena, struct tp_err *err);

/* As file_read_all, opened as file_open_own. */
tp_status file_read_own(char **data, size_t *size, const char *path, size_t max_bytes,
                        struct arena *arena, struct tp_err *err);

/* Create a file that must not exist yet, write it, and fsync it. */
tp_status file_write_new(const char *path, const void *data, size_t size, struct tp_err *err);

/* Replace a file so that a reader sees the old or the new content: write a temporary file, fsync
 * it, rename it, fsync the directory. TP_E_EXISTS: path is a directory, a device or the like. */
tp_status file_replace(const char *path, const void *data, size_t size, struct tp_err *err);

/* How many files are worth syncing at the same time: a file system commits together what waits for
 * it, and a server answers many at once. */
enum { FILE_SYNC_THREADS = 16 };

/* fsync an open file; data_only: fdatasync. A call that a signal interrupts is repeated, which
 * happens on network file systems. */
tp_status file_sync(int fd, const char *path, bool data_only, struct tp_err *err);

/* fsync a directory, so that new and renamed entries survive a crash. */
tp_status file_sync_dir(const char *path, struct tp_err *err);

/* The folder of a path or URL, without what is below it; "." of a plain name. Longer paths than
 * PATH_MAX are cut. */
void file_parent(char out[PATH_MAX], const char *path);

/* Create a directory and its parents, as mkdir -p. */
tp_status file_make_dirs(const char *path, struct tp_err *err);

/* dir/name. TP_E_USAGE: it is longer than a path may be. */
tp_status file_join(char path[PATH_MAX], const char *dir, const char *name, struct tp_err *err);

/* Whether there is something at path: a symbolic link counts, wherever it leads. Whether it is a
 * directory: links are followed. False also when that cannot be known. */
bool file_exists(const char *path);
bool file_is_dir(const char *path);

/* Whether both paths, which may be links, lead to the same file or folder. */
bool file_is_same(const char *a, const char *b);

/* Whether a folder, and the nearest folder above `path` that exists, are on one file system. */
bool file_same_system(const char *dir, const char *path);

/* Whether name can be the name of a file in a folder: not empty, ".", "..", or too long; no '/' and
 * no control characters. */
bool file_name_is_plain(const char *name);

#endif
