/*
 * storage/object.h - a file that is read by ranges, wherever it is.
 *
 * A local file is a descriptor, and reading it is one pread (core/file.h). An object of a web
 * server (http://, https://) or of an S3-compatible store (s3://) is fetched by
 * storage/remote_object.h. Callers keep the path beside the object, as they do beside a descriptor;
 * messages contain it.
 */
#ifndef STORAGE_OBJECT_H
#define STORAGE_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"
#include "core/json_scan.h"

struct object {
    int fd;                       /* of a local file, else -1 */
    struct remote_object *remote; /* NULL: local, or not open */
};

#define OBJECT_NONE ((struct object){ .fd = -1 })

/* The object of an open file. The descriptor still belongs to the caller. */
static inline struct object object_of_file(int fd)
{
    return (struct object){ .fd = fd };
}

/* Open what our programs wrote; *size is its length. A symbolic link, FIFO, device or directory is
 * TP_E_CORRUPT. TP_E_NOTFOUND: there is nothing. TP_E_IO: it cannot be reached; TP_E_USAGE: the URL
 * is wrong or there are no credentials. */
tp_status object_open(struct object *out, int64_t *size, const char *path, struct tp_err *err);
void object_close(struct object *o);

/* The same, for a reader that begins with n bytes at `offset`: a remote object answers with them
 * when it is opened. */
tp_status object_open_ahead(struct object *out, int64_t *size, const char *path, int64_t offset,
                            int64_t n, struct tp_err *err);

/* Whether there is something at a path. TP_E_IO, TP_E_USAGE: that cannot be known. */
tp_status object_exists(bool *exists, const char *path, struct tp_err *err);

/* Read a whole object into the arena, with a 0 byte after it; a remote one of up to 4 MiB in one
 * request, so another program may replace it meanwhile. TP_E_CORRUPT: it is longer than max_bytes.
 * Opens as object_open. */
tp_status object_read_all(char **data, size_t *size, const char *path, size_t max_bytes,
                          struct arena *arena, struct tp_err *err);

/* The ETag of an open remote object; "": it has none. Borrowed. */
const char *object_etag(const struct object *o);

/* ---- files of other programs ---- */

/* As object_open, but a local path may be a symbolic link to a file. */
tp_status object_open_any(struct object *out, int64_t *size, const char *path, struct tp_err *err);

/* Whether there is something at a path. False also when that cannot be known. */
bool object_is_there(const char *path);

/* The same of `name` in the folder `dir`. */
bool object_is_in(const char *dir, const char *name);

/* As object_read_all, but a local path may be a symbolic link to a file. */
tp_status object_read_any(char **data, size_t *size, const char *path, size_t max_bytes,
                          struct arena *arena, struct tp_err *err);

/* Copy `name` of the folder `from` into the local folder `to`, where it is new. TP_E_CORRUPT: it is
 * longer than max_bytes, and is held in memory. */
tp_status object_copy_file(const char *from, const char *to, const char *name, size_t max_bytes,
                           struct tp_err *err);

/* size bytes at `begin` of an open object, as JSON. o and path are borrowed. */
struct json_scan_input object_json(const struct object *o, int64_t begin, int64_t size,
                                   const char *path);

/* ---- reading ---- */

/* Say that n bytes at `offset` will be read, once, after what was named before; so long requests
 * are sent for remote objects, early enough. Only a hint; for local objects nothing. */
void object_will_read(const struct object *o, int64_t offset, int64_t n);

/* Read exactly n bytes at `offset`. TP_E_CORRUPT: the object ends before that; otherwise TP_E_IO.
 * Thread safe. */
tp_status object_read_at(const struct object *o, const char *path, int64_t offset, void *buf,
                         size_t n, struct tp_err *err);

#endif
