/* storage/object.c - see storage/object.h. */
#include "storage/object.h"

#include <unistd.h>

#include "core/file.h"

tp_status object_open(struct object *out, int64_t *size, const char *path, struct tp_err *err)
{
    *out = OBJECT_NONE;
    return file_open_own(&out->fd, size, path, err);
}

void object_close(struct object *o)
{
    if (o->fd >= 0)
        close(o->fd);
    *o = OBJECT_NONE;
}

tp_status object_read_at(const struct object *o, const char *path, int64_t offset, void *buf,
                         size_t n, struct tp_err *err)
{
    return file_read_at(o->fd, path, offset, buf, n, err);
}
