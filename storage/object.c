/* storage/object.c - see storage/object.h. */
#include "storage/object.h"

#include <unistd.h>

#include "core/file.h"
#include "storage/location.h"
#include "storage/remote_object.h"
#include "storage/remote_segment.h"

tp_status object_open_ahead(struct object *out, int64_t *size, const char *path, int64_t offset,
                            int64_t n, struct tp_err *err)
{
    *out = OBJECT_NONE;
    if (location_is_remote(path))
        return remote_object_open(&out->remote, size, path, offset, n, err);
    return file_open_own(&out->fd, size, path, err);
}

tp_status object_open(struct object *out, int64_t *size, const char *path, struct tp_err *err)
{
    return object_open_ahead(out, size, path, 0, 1, err);
}

void object_close(struct object *o)
{
    if (o->fd >= 0)
        close(o->fd);
    remote_object_close(o->remote);
    *o = OBJECT_NONE;
}

tp_status object_exists(bool *exists, const char *path, struct tp_err *err)
{
    struct object o = OBJECT_NONE;
    int64_t size = 0;
    tp_status st = TP_OK;

    if (!location_is_remote(path)) {
        *exists = file_exists(path);
        return TP_OK;
    }
    st = object_open(&o, &size, path, err);
    *exists = !st;
    object_close(&o);
    return st == TP_E_NOTFOUND ? TP_OK : st;
}

const char *object_etag(const struct object *o)
{
    return o->remote ? remote_object_etag(o->remote) : "";
}

tp_status object_open_any(struct object *out, int64_t *size, const char *path, struct tp_err *err)
{
    *out = OBJECT_NONE;
    return location_is_remote(path) ? object_open(out, size, path, err)
                                    : file_open_read(&out->fd, size, path, err);
}

bool object_is_there(const char *path)
{
    struct tp_err ignored;
    bool exists = false;

    return object_exists(&exists, path, &ignored) == TP_OK && exists;
}

bool object_is_in(const char *dir, const char *name)
{
    struct tp_err ignored = { 0 };
    char path[PATH_MAX];

    return !file_join(path, dir, name, &ignored) && object_is_there(path);
}

tp_status object_read_any(char **data, size_t *size, const char *path, size_t max_bytes,
                          struct arena *arena, struct tp_err *err)
{
    return location_is_remote(path) ? object_read_all(data, size, path, max_bytes, arena, err)
                                    : file_read_all(data, size, path, max_bytes, arena, err);
}

tp_status object_copy_file(const char *from, const char *to, const char *name, size_t max_bytes,
                           struct tp_err *err)
{
    char source[PATH_MAX], target[PATH_MAX], *data;
    struct arena arena = { 0 };
    size_t size;
    tp_status st;

    TP_TRY(file_join(source, from, name, err));
    TP_TRY(file_join(target, to, name, err));
    TP_TRY(object_read_any(&data, &size, source, max_bytes, &arena, err));
    st = file_write_new(target, data, size, err);
done:
    arena_free(&arena);
    return st;
}

static tp_status read_json(const void *ctx, const char *path, int64_t offset, void *buf, size_t n,
                           struct tp_err *err)
{
    return object_read_at(ctx, path, offset, buf, n, err);
}

struct json_scan_input object_json(const struct object *o, int64_t begin, int64_t size,
                                   const char *path)
{
    struct json_scan_input in = json_scan_input_file(o->fd, begin, size, path);

    in.read = read_json;
    in.ctx = o;
    return in;
}

tp_status object_read_at(const struct object *o, const char *path, int64_t offset, void *buf,
                         size_t n, struct tp_err *err)
{
    if (o->remote)
        return remote_object_read(o->remote, offset, buf, n, err);
    return file_read_at(o->fd, path, offset, buf, n, err);
}

void object_will_read(const struct object *o, int64_t offset, int64_t n)
{
    if (o->remote)
        remote_object_will_read(o->remote, offset, n);
}

tp_status object_read_all(char **data, size_t *size, const char *path, size_t max_bytes,
                          struct arena *arena, struct tp_err *err)
{
    struct object o = OBJECT_NONE;
    const int64_t ahead = max_bytes < REMOTE_SEGMENT_MAX ? (int64_t)max_bytes : REMOTE_SEGMENT_MAX;
    int64_t n = 0;
    char *buf;
    tp_status st = object_open_ahead(&o, &n, path, 0, ahead, err);

    if (st)
        return st;
    if ((uint64_t)n > max_bytes)
        TP_TRY(tp_fail(err, TP_E_CORRUPT, "%s: %lld bytes, more than the %zu allowed", path,
                       (long long)n, max_bytes));
    buf = arena_alloc(arena, (size_t)n + 1);
    if (!buf)
        TP_TRY(tp_fail(err, TP_E_NOMEM, "%s: no memory for %lld bytes", path, (long long)n));
    TP_TRY(object_read_at(&o, path, 0, buf, (size_t)n, err));
    buf[n] = 0;
    *data = buf;
    *size = (size_t)n;
done:
    object_close(&o);
    return st;
}
