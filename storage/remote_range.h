/*
 * storage/remote_range.h - an open remote object, and requests for ranges of its bytes. Inside
 * storage/ only.
 */
#ifndef STORAGE_REMOTE_RANGE_H
#define STORAGE_REMOTE_RANGE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "storage/http.h"

struct remote_object {
    char path[PATH_MAX];
    int64_t size;
    char etag[HTTP_VALUE_MAX];
    int64_t read_at; /* the last read, in ticks */
    int64_t counted; /* when objects with segments were last counted: struct remote_segments */
    int64_t window;  /* length of the last segment that was begun */
    bool is_named;   /* its readers name what they read, so nothing else is fetched */
};

/* Read n bytes at `offset`, and learn the object's length and ETag. *got: how many of these bytes
 * are there: n, or those that a shorter object has, or 0: its length is not known yet. */
tp_status remote_range_examine(struct remote_object *o, int64_t offset, int64_t n,
                               unsigned char *into, int64_t *got, struct tp_err *err);

/* Read exactly n bytes at `begin` of an object whose length is known. TP_E_IO: also when another
 * program has replaced or removed it since it was examined. */
tp_status remote_range_read(const struct remote_object *o, int64_t begin, int64_t n,
                            unsigned char *into, struct tp_err *err);

#endif
