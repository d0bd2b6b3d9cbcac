/*
 * storage/remote_object.h - an object of a web server or a store, read by ranges.
 *
 * Ranges are fetched by threads of their own, several at a time, into segments in memory. A reader
 * that goes on where an earlier read ended makes the segments longer, up to 4 MiB, and the next
 * ones are fetched before they are asked for. All segments of a process together have at most the
 * bytes that remote_object_limit allows.
 *
 * The object must stay the same while it is open: its ETag is sent with every request and compared
 * with every reply.
 */
#ifndef STORAGE_REMOTE_OBJECT_H
#define STORAGE_REMOTE_OBJECT_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

struct remote_object;

/* The most bytes that segments may have together, at least 4 MiB; REMOTE_SEGMENTS_BYTES
 * (storage/remote.h) unless this is called. Connections need up to 512 KiB
 * each besides. */
void remote_object_limit(int64_t bytes);

/* Open; *size is the length. TP_E_NOTFOUND: there is no such object. Errors else as remote_send. */
tp_status remote_object_open(struct remote_object **out, int64_t *size, const char *path,
                             struct tp_err *err);
void remote_object_close(struct remote_object *o);

/* Begin to fetch n bytes at `offset`, if there is room. What follows them is not fetched. */
void remote_object_will_read(struct remote_object *o, int64_t offset, size_t n);

/* Read exactly n bytes at `offset`. TP_E_CORRUPT: the object ends before that. TP_E_IO: it cannot
 * be read, or was replaced since it was opened. Thread safe. */
tp_status remote_object_read(struct remote_object *o, int64_t offset, void *buf, size_t n,
                             struct tp_err *err);

#endif
