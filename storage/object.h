/*
 * storage/object.h - a file that is read by ranges, wherever it is.
 *
 * A local file is a descriptor, and reading it is one pread (core/file.h). Callers keep the path
 * beside the object, as they do beside a descriptor; messages contain it.
 */
#ifndef STORAGE_OBJECT_H
#define STORAGE_OBJECT_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

struct object {
    int fd; /* -1: not open */
};

#define OBJECT_NONE ((struct object){ .fd = -1 })

/* The object of an open file. The descriptor still belongs to the caller. */
static inline struct object object_of_file(int fd)
{
    return (struct object){ .fd = fd };
}

/* Open what our programs wrote; *size is its length. A symbolic link, FIFO, device or directory is
 * TP_E_CORRUPT. TP_E_NOTFOUND: there is nothing. */
tp_status object_open(struct object *out, int64_t *size, const char *path, struct tp_err *err);
void object_close(struct object *o);

/* Read exactly n bytes at `offset`. TP_E_CORRUPT: the object ends before that; otherwise TP_E_IO.
 * Thread safe. */
tp_status object_read_at(const struct object *o, const char *path, int64_t offset, void *buf,
                         size_t n, struct tp_err *err);

#endif
