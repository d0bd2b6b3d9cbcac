/* core/private_dir.c - see core/private_dir.h. */
#include "core/private_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/file_tree.h"

enum { RANDOM_BYTES = 8 };

tp_status private_dir_name(char path[PATH_MAX], const char *parent, const char *prefix,
                           struct tp_err *err)
{
    unsigned char random[RANDOM_BYTES];
    char digits[2 * RANDOM_BYTES + 1];

    if (getrandom(random, sizeof random, 0) != sizeof random)
        return tp_fail_errno(err, "no random numbers");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(digits + 2 * i, 3, "%02x", random[i]);
    if (snprintf(path, PATH_MAX, "%s/%s%s", parent, prefix, digits) >= PATH_MAX)
        return tp_fail(err, TP_E_USAGE, "%.200s/%.100s...: the path is too long", parent, prefix);
    return TP_OK;
}

/* Whether the open directory belongs to this user alone. */
static tp_status check(int fd, const char *path, struct tp_err *err)
{
    struct stat sb;

    if (fstat(fd, &sb) != 0)
        return tp_fail_errno(err, "%s: cannot stat", path);
    if (sb.st_uid != geteuid())
        return tp_fail(err, TP_E_USAGE,
                       "%s: belongs to user %ld, expected user %ld; remove it, or name another "
                       "folder",
                       path, (long)sb.st_uid, (long)geteuid());
    if (sb.st_mode & (S_IWGRP | S_IWOTH))
        return tp_fail(err, TP_E_USAGE,
                       "%s: other users can write to it (mode %03o); run chmod go-w on it, if you "
                       "trust what is in it",
                       path, (unsigned)sb.st_mode & 0777);
    return TP_OK;
}

tp_status private_dir_open(int *fd, const char *path, struct tp_err *err)
{
    int f = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (f < 0 && errno == ENOENT)
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such folder", path);
    if (f < 0 && (errno == ELOOP || errno == ENOTDIR))
        return tp_fail(err, TP_E_USAGE,
                       "%s: is a symbolic link or a file, expected a folder; name the folder "
                       "itself",
                       path);
    if (f < 0)
        return tp_fail_errno(err, "%s: cannot open", path);
    if (check(f, path, err)) {
        close(f);
        return err->status;
    }
    *fd = f;
    return TP_OK;
}

tp_status private_dir_make(int *fd, const char *path, struct tp_err *err)
{
    if (mkdir(path, 0700) != 0)
        return errno == EEXIST ? tp_fail(err, TP_E_EXISTS, "%s: exists already", path)
                               : tp_fail_errno(err, "%s: cannot create", path);
    return private_dir_open(fd, path, err);
}

tp_status private_dir_ensure(int *fd, const char *path, struct tp_err *err)
{
    char parent[PATH_MAX];
    int f = -1;
    tp_status st = private_dir_open(fd, path, err);

    if (st != TP_E_NOTFOUND)
        return st;
    if (strlen(path) >= PATH_MAX)
        return tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", path);
    file_parent(parent, path);
    if ((st = file_make_dirs(parent, err)))
        return st;
    st = private_dir_make(&f, path, err);
    if (st)
        return st == TP_E_EXISTS ? private_dir_open(fd, path, err) : st;
    st = file_sync_dir(parent, err); /* what it holds is lost if its name is not on the disk */
    if (st)
        close(f);
    else
        *fd = f;
    return st;
}

struct private_dir_id private_dir_id(int fd)
{
    struct stat sb;

    if (fd < 0 || fstat(fd, &sb) != 0)
        return (struct private_dir_id){ 0 };
    return (struct private_dir_id){ (int64_t)sb.st_dev, (int64_t)sb.st_ino };
}

bool private_dir_is(int fd, const struct private_dir_id *id)
{
    struct private_dir_id it = private_dir_id(fd);

    return id->ino != 0 && it.dev == id->dev && it.ino == id->ino;
}

tp_status private_dir_file(int *fd, int dir, const char *path, const char *name, int flags,
                           struct tp_err *err)
{
    int f = openat(dir, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    struct stat sb;

    if (f < 0 && errno == ENOENT)
        return tp_fail(err, TP_E_NOTFOUND, "%s/%s: no such file", path, name);
    if (f < 0 && errno == ELOOP)
        return tp_fail(err, TP_E_USAGE, "%s/%s: is a symbolic link, expected a regular file", path,
                       name);
    if (f < 0)
        return tp_fail_errno(err, "%s/%s: cannot open", path, name);
    if (fstat(f, &sb) != 0 || !S_ISREG(sb.st_mode) || sb.st_uid != geteuid()) {
        close(f);
        return tp_fail(err, TP_E_USAGE, "%s/%s: expected a regular file of user %ld", path, name,
                       (long)geteuid());
    }
    *fd = f;
    return TP_OK;
}

tp_status private_dir_read(char **data, size_t *size, int dir, const char *path, const char *name,
                           size_t max_bytes, struct arena *arena, struct tp_err *err)
{
    struct stat sb;
    char *buf;
    int fd = -1;
    tp_status st;

    TP_TRY(private_dir_file(&fd, dir, path, name, O_RDONLY, err));
    if (fstat(fd, &sb) != 0)
        TP_TRY(tp_fail_errno(err, "%s/%s: cannot stat", path, name));
    if ((uint64_t)sb.st_size > max_bytes)
        TP_TRY(tp_fail(err, TP_E_CORRUPT, "%s/%s: %lld bytes, more than the %zu allowed", path,
                       name, (long long)sb.st_size, max_bytes));
    buf = arena_alloc(arena, (size_t)sb.st_size + 1);
    if (!buf)
        TP_TRY(tp_fail(err, TP_E_NOMEM, "%s/%s: no memory for %lld bytes", path, name,
                       (long long)sb.st_size));
    TP_TRY(file_read_at(fd, name, 0, buf, (size_t)sb.st_size, err));
    buf[sb.st_size] = 0;
    *data = buf;
    *size = (size_t)sb.st_size;
done:
    if (fd >= 0)
        close(fd);
    return st;
}

tp_status private_dir_replace(int dir, const char *path, const char *name, const void *data,
                              size_t size, struct tp_err *err)
{
    char tmp[NAME_MAX + 1];
    int fd = -1;
    tp_status st;

    snprintf(tmp, sizeof tmp, "%.200s.tmp-%ld", name, (long)getpid());
    unlinkat(dir, tmp, 0); /* left by a dead process that had our pid */
    TP_TRY(private_dir_file(&fd, dir, path, tmp, O_WRONLY | O_CREAT | O_EXCL, err));
    TP_TRY(file_write_at(fd, tmp, 0, data, size, err));
    TP_TRY(file_sync(fd, tmp, false, err));
    if (renameat(dir, tmp, dir, name) != 0)
        TP_TRY(tp_fail_errno(err, "%s/%s: cannot rename %s to it", path, name, tmp));
    st = file_sync(dir, path, false, err);
done:
    if (st)
        unlinkat(dir, tmp, 0);
    if (fd >= 0)
        close(fd);
    return st;
}

/* Open the parent of `path`; *name is the last part of `path`. -1: see errno. */
static int open_parent(const char **name, const char *path)
{
    const char *slash = strrchr(path, '/');
    char parent[PATH_MAX] = ".";

    *name = slash ? slash + 1 : path;
    if (slash)
        snprintf(parent, sizeof parent, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

tp_status private_dir_remove(int dir, const char *path, struct tp_err *err)
{
    const struct private_dir_id id = private_dir_id(dir);
    const char *name;
    struct stat sb;
    int parent = open_parent(&name, path);
    tp_status st = TP_OK;

    if (parent < 0)
        st = tp_fail_errno(err, "%s: cannot open its folder", path);
    else if (fstatat(parent, name, &sb, AT_SYMLINK_NOFOLLOW) != 0)
        st = errno == ENOENT ? TP_OK : tp_fail_errno(err, "%s: cannot stat", path);
    else if ((int64_t)sb.st_dev != id.dev || (int64_t)sb.st_ino != id.ino)
        st = tp_fail(err, TP_E_IO, "%s: was replaced, so it is not removed", path);
    else
        st = file_tree_remove_at(parent, name, geteuid(), err);
    if (parent >= 0)
        close(parent);
    close(dir);
    return st;
}
