/*
 * storage/remote_object.h - an object of a web server or a store, read by ranges.
 *
 * Ranges are fetched by threads of their own, several at a time, into segments in memory. A reader
 * that knows what it will read names it, and each byte is then fetched once, in long requests.
 * Otherwise a read that begins where an earlier one ended makes the segments longer, up to 4 MiB,
 * and the next ones are fetched before they are asked for. All segments of a process together have
 * at most the bytes that remote_object_limit allows.
 *
 * The object must stay the same while it is open: its ETag is sent with every request and compared
 * with every reply.
 */
#ifndef STORAGE_REMOTE_OBJECT_H
#define STORAGE_REMOTE_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

struct remote_object;

/* The most bytes that segments may have together, at least 4 MiB; REMOTE_SEGMENTS_BYTES
 * (storage/remote.h) unless this is called. Connections need up to 512 KiB
 * each besides. */
void remote_object_limit(int64_t bytes);

/* Whether readers of this process look at small parts of objects for now, as at the headers of
 * archives: then short ranges are fetched, and nothing ahead of them. */
void remote_object_sparse(bool sparse);

/* Open; *size is the length. The request that opens asks for n bytes at `offset`, which are read
 * first; what is outside the object, or too long, is not an error. TP_E_NOTFOUND: there is no such
 * object. Errors else as remote_send. */
tp_status remote_object_open(struct remote_object **out, int64_t *size, const char *path,
                             int64_t offset, int64_t n, struct tp_err *err);
void remote_object_close(struct remote_object *o);

/* Its ETag; "": the server gave none. Borrowed. */
const char *remote_object_etag(const struct remote_object *o);

/* Say that n bytes at `offset` will be read, once, after what was named before. They are fetched as
 * soon as there is room, in one request with neighbours that were named too. */
void remote_object_will_read(struct remote_object *o, int64_t offset, int64_t n);

/* How much it helps to name ahead of what is read. */
int64_t remote_object_ahead_bytes(void);

/* Read exactly n bytes at `offset`. TP_E_CORRUPT: the object ends before that. TP_E_IO: it cannot
 * be read, or was replaced since it was opened. Thread safe. */
tp_status remote_object_read(struct remote_object *o, int64_t offset, void *buf, size_t n,
                             struct tp_err *err);

#endif
