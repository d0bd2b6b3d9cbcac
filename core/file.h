/*
 * core/file.h - whole reads and writes, and the steps of a durable rename.
 *
 * Every call finishes its bytes (short transfers and EINTR are retried) or fails; ENOSPC, EIO and
 * the like are never retried, and a failed fsync is final. Paths appear in the messages.
 */
#ifndef CORE_FILE_H
#define CORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"

/* Read exactly n bytes at offset. TP_E_CORRUPT: the file ends before; TP_E_IO otherwise. */
tp_status file_read_at(int fd, const char *path, int64_t offset, void *buf, size_t n,
                       struct tp_err *err);

/* Write exactly n bytes at offset. */
tp_status file_write_at(int fd, const char *path, int64_t offset, const void *buf, size_t n,
                        struct tp_err *err);

/* Open a regular file for reading without blocking: a FIFO, device or directory is refused
 * (TP_E_CORRUPT). *size gets its length. TP_E_NOTFOUND when it is absent.
 * For what people name and what others lay out: symbolic links are followed, since model folders
 * of Hugging Face's cache consist of them. */
tp_status file_open_read(int *fd, int64_t *size, const char *path, struct tp_err *err);

/* The same of a file in a folder that is ours, where a symbolic link is damage (TP_E_CORRUPT): it
 * leads to bytes that nobody saved there. */
tp_status file_open_own(int *fd, int64_t *size, const char *path, struct tp_err *err);

/* The whole file, with a 0 byte after it, in the arena. TP_E_CORRUPT when longer than max_bytes. */
tp_status file_read_all(char **data, size_t *size, const char *path, size_t max_bytes,
                        struct arena *arena, struct tp_err *err);

/* The same, as file_open_own. */
tp_status file_read_own(char **data, size_t *size, const char *path, size_t max_bytes,
                        struct arena *arena, struct tp_err *err);

/* Create path (which must not exist), write data, fsync, close. */
tp_status file_write_new(const char *path, const void *data, size_t size, struct tp_err *err);

/* Replace path by data so that a reader sees the old or the new: temporary, fsync, rename, fsync
 * of the directory. TP_E_EXISTS: what is there is a directory, a device or the like. */
tp_status file_replace(const char *path, const void *data, size_t size, struct tp_err *err);

/* fsync an open file, or its data alone (fdatasync) and what is needed to find them; again when a
 * signal interrupts it, as it can on network file systems. */
tp_status file_sync(int fd, const char *path, bool data_only, struct tp_err *err);

/* fsync a directory, so that the names in it last. */
tp_status file_sync_dir(const char *path, struct tp_err *err);

/* mkdir -p. */
tp_status file_make_dirs(const char *path, struct tp_err *err);

/* rm -r, following no links; what is not there is no error. */
tp_status file_remove_tree(const char *path, struct tp_err *err);

bool file_exists(const char *path);
bool file_is_dir(const char *path);

/* Whether name is a plain file name: not empty, no '/', not "." or "..", no control characters. */
bool file_name_is_plain(const char *name);

#endif
