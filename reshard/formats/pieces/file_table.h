/*
 * reshard/formats/pieces/file_table.h - the files of a source or target, of which only some are
 * open at a time: a sixth of the files that the process may open when they are read, half of them
 * when they are written. A checkpoint of a large job has thousands of files, and some systems let a
 * process open about a thousand. A file that was written is synced before it is closed.
 */
#ifndef RESHARD_FORMATS_PIECES_FILE_TABLE_H
#define RESHARD_FORMATS_PIECES_FILE_TABLE_H

#include <stdint.h>

#include "core/err.h"
#include "torch/file_part.h"

struct file_table;

/* An empty table of files to read, or of new files to write: these are created when they are first
 * used. NULL: memory is out. */
struct file_table *file_table_new(void);
struct file_table *file_table_new_writable(void);
void file_table_free(struct file_table *t);

/* Add a file; it gets the numbers 0, 1, ... in order. It need not exist yet. */
tp_status file_table_add(struct file_table *t, int *number, const char *path, struct tp_err *err);

/* How many files there are, and the path of one. Borrowed. */
int file_table_count(const struct file_table *t);
const char *file_table_path(const struct file_table *t, int number);

/* Open a file, unless it is open; *part is all of it. It stays open until file_table_release, and
 * for as long afterwards as few files are open. TP_E_NOTFOUND: there is no such file; the message
 * also names others of the table that are missing. TP_E_IO also when others, which are closed in
 * its place, could not be synced. Both are thread safe. */
tp_status file_table_use(struct file_table *t, int number, struct file_part *part,
                         struct tp_err *err);
void file_table_release(struct file_table *t, int number);

/* Use a file to read n bytes at `at`. TP_E_CORRUPT: they are not all in it. */
tp_status file_table_read(struct file_table *t, int number, int64_t at, void *buf, int64_t n,
                          struct tp_err *err);

/* Bytes of a file of a table to read. */
struct file_table_range {
    struct file_table *files;
    int file;
    int64_t begin, size;
};

/* Read n bytes at `at` of the range. TP_E_CORRUPT: they are not all in it, or not in the file. */
tp_status file_table_range_read(const struct file_table_range *r, int64_t at, void *buf, int64_t n,
                                struct tp_err *err);

/* Say that the range will be read (object_will_read). */
void file_table_range_will_read(const struct file_table_range *r);

/* fsync the files of a writable table that were used since the last sync and are not in use,
 * several at the same time. Not while other threads use the table. */
tp_status file_table_sync(struct file_table *t, struct tp_err *err);

#endif
