/* core/file.c - see core/file.h. */
#include "core/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/text.h"

/* Most bytes of one system call; Linux transfers at most 0x7ffff000. */
enum { TRANSFER_MAX = 1 << 30 };

tp_status file_read_at(int fd, const char *path, int64_t offset, void *buf, size_t n,
                       struct tp_err *err)
{
    unsigned char *p = buf;

    while (n > 0) {
        ssize_t got = pread(fd, p, n < TRANSFER_MAX ? n : TRANSFER_MAX, offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tp_fail_errno(err, "%s: cannot read %zu bytes at offset %lld", path, n,
                                 (long long)offset);
        if (got == 0)
            return tp_fail(err, TP_E_CORRUPT, "%s: ends at byte %lld, expected %zu bytes more",
                           path, (long long)offset, n);
        p += got;
        offset += got;
        n -= (size_t)got;
    }
    return TP_OK;
}

/* Linux lets one thread write to a file at a time, and the others spin until it is done. These
 * locks, of which a file has one by its descriptor, let them sleep: that saves up to a sixth of the
 * CPU time of two threads that write one file. */
enum { N_WRITE_LOCKS = 64 };
static pthread_mutex_t write_locks[N_WRITE_LOCKS] = {
    [0 ... N_WRITE_LOCKS - 1] = PTHREAD_MUTEX_INITIALIZER,
};

static ssize_t write_alone(int fd, const void *buf, size_t n, int64_t offset)
{
    pthread_mutex_t *lock = &write_locks[(unsigned)fd % N_WRITE_LOCKS];
    ssize_t put;
    int saved;

    pthread_mutex_lock(lock);
    put = pwrite(fd, buf, n < TRANSFER_MAX ? n : TRANSFER_MAX, offset);
    saved = errno;
    pthread_mutex_unlock(lock);
    errno = saved;
    return put;
}

tp_status file_write_at(int fd, const char *path, int64_t offset, const void *buf, size_t n,
                        struct tp_err *err)
{
    const unsigned char *p = buf;

    while (n > 0) {
        ssize_t put = write_alone(fd, p, n, offset);

        if (put < 0 && errno == EINTR)
            continue;
        if (put == 0)
            errno = ENOSPC;
        if (put <= 0)
            return tp_fail_errno(err, "%s: cannot write %zu bytes at offset %lld", path, n,
                                 (long long)offset);
        p += put;
        offset += put;
        n -= (size_t)put;
    }
    return TP_OK;
}

static tp_status open_regular(int *fd, int64_t *size, const char *path, int flags,
                              struct tp_err *err)
{
    struct stat sb;
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);

    if (f < 0 && (errno == ENOENT || errno == ENOTDIR))
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such file", path);
    if (f < 0 && errno == ELOOP && flags)
        return tp_fail(err, TP_E_CORRUPT, "%s: is a symbolic link, expected a regular file", path);
    if (f < 0)
        return tp_fail_errno(err, "%s: cannot open", path);
    if (fstat(f, &sb) != 0) {
        tp_fail_errno(err, "%s: cannot stat", path);
        close(f);
        return TP_E_IO;
    }
    if (!S_ISREG(sb.st_mode)) {
        close(f);
        return tp_fail(err, TP_E_CORRUPT, "%s: is %s, expected a regular file", path,
                       S_ISDIR(sb.st_mode) ? "a folder" : "a device or pipe");
    }
    *fd = f;
    *size = sb.st_size;
    return TP_OK;
}

tp_status file_open_read(int *fd, int64_t *size, const char *path, struct tp_err *err)
{
    return open_regular(fd, size, path, 0, err);
}

tp_status file_open_own(int *fd, int64_t *size, const char *path, struct tp_err *err)
{
    return open_regular(fd, size, path, O_NOFOLLOW, err);
}

static tp_status read_all(char **data, size_t *size, const char *path, int flags, size_t max_bytes,
                          struct arena *arena, struct tp_err *err)
{
    int64_t n = 0;
    int fd = -1;
    char *buf;
    tp_status st = open_regular(&fd, &n, path, flags, err);

    if (st)
        return st;
    if ((uint64_t)n > max_bytes) {
        st = tp_fail(err, TP_E_CORRUPT, "%s: %lld bytes, more than the %zu allowed", path,
                     (long long)n, max_bytes);
        goto done;
    }
    buf = arena_alloc(arena, (size_t)n + 1);
    if (!buf) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for %lld bytes", path, (long long)n);
        goto done;
    }
    TP_TRY(file_read_at(fd, path, 0, buf, (size_t)n, err));
    buf[n] = 0;
    *data = buf;
    *size = (size_t)n;
done:
    close(fd);
    return st;
}

tp_status file_read_all(char **data, size_t *size, const char *path, size_t max_bytes,
                        struct arena *arena, struct tp_err *err)
{
    return read_all(data, size, path, 0, max_bytes, arena, err);
}

tp_status file_read_argument(char **data, size_t *size, const char *path, size_t max_bytes,
                             struct arena *arena, struct tp_err *err)
{
    tp_status st = file_read_all(data, size, path, max_bytes, arena, err);

    if (st == TP_E_CORRUPT)
        st = err->status = TP_E_USAGE;
    return st;
}

tp_status file_read_own(char **data, size_t *size, const char *path, size_t max_bytes,
                        struct arena *arena, struct tp_err *err)
{
    return read_all(data, size, path, O_NOFOLLOW, max_bytes, arena, err);
}

tp_status file_sync(int fd, const char *path, bool data_only, struct tp_err *err)
{
    int result;

    do
        result = data_only ? fdatasync(fd) : fsync(fd);
    while (result != 0 && errno == EINTR);
    return result == 0 ? TP_OK : tp_fail_errno(err, "%s: fsync failed", path);
}

static tp_status write_and_sync(int fd, const char *path, const void *data, size_t size,
                                struct tp_err *err)
{
    tp_status st = file_write_at(fd, path, 0, data, size, err);

    if (!st)
        st = file_sync(fd, path, false, err);
    if (close(fd) != 0 && !st)
        st = tp_fail_errno(err, "%s: close failed", path);
    return st;
}

tp_status file_write_new(const char *path, const void *data, size_t size, struct tp_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    tp_status st;

    if (fd < 0)
        return tp_fail_errno(err, "%s: cannot create", path);
    st = write_and_sync(fd, path, data, size, err);
    if (st)
        unlink(path);
    return st;
}

void file_parent(char out[PATH_MAX], const char *path)
{
    char *slash;

    snprintf(out, PATH_MAX, "%.*s", (int)text_path_length(path), path);
    slash = strrchr(out, '/');
    if (slash && slash != out)
        *slash = 0;
    else
        snprintf(out, PATH_MAX, "%s", slash ? "/" : ".");
}

tp_status file_replace(const char *path, const void *data, size_t size, struct tp_err *err)
{
    char tmp[PATH_MAX], dir[PATH_MAX];
    struct stat sb;
    tp_status st;

    if (snprintf(tmp, sizeof tmp, "%s.tmp-%ld", path, (long)getpid()) >= (int)sizeof tmp)
        return tp_fail(err, TP_E_USAGE, "%s: path is too long", path);
    if (lstat(path, &sb) == 0 && !S_ISREG(sb.st_mode) && !S_ISLNK(sb.st_mode))
        return tp_fail(err, TP_E_EXISTS,
                       "%s: exists and is not a regular file, so it is not replaced", path);
    unlink(tmp); /* left by a dead process that had our pid */
    st = file_write_new(tmp, data, size, err);
    if (st)
        return st;
    if (rename(tmp, path) != 0) {
        tp_fail_errno(err, "%s: cannot rename %s over it", path, tmp);
        unlink(tmp);
        return TP_E_IO;
    }
    file_parent(dir, path);
    return file_sync_dir(dir, err);
}

tp_status file_sync_dir(const char *path, struct tp_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    tp_status st;

    if (fd < 0)
        return tp_fail_errno(err, "%s: cannot open directory", path);
    st = file_sync(fd, path, false, err);
    close(fd);
    return st;
}

/* Make one directory, if it does not exist, and its entry durable: a file that is synced later is
 * lost in a power cut if the name of a directory above it is lost. */
static tp_status make_dir(const char *path, struct tp_err *err)
{
    char parent[PATH_MAX];

    file_parent(parent, path);
    if (mkdir(path, 0777) != 0)
        return errno == EEXIST ? TP_OK : tp_fail_errno(err, "%s: cannot create directory", path);
    if (access(parent, R_OK) != 0) /* a directory that cannot be read cannot be synced */
        return TP_OK;
    return file_sync_dir(parent, err);
}

tp_status file_make_dirs(const char *path, struct tp_err *err)
{
    char buf[PATH_MAX];
    tp_status st;

    if (snprintf(buf, sizeof buf, "%s", path) >= (int)sizeof buf)
        return tp_fail(err, TP_E_USAGE, "%s: path is too long", path);
    for (char *p = buf + 1;; p++) {
        char c = *p;

        if (c && c != '/')
            continue;
        *p = 0;
        if ((st = make_dir(buf, err)))
            return st;
        *p = c;
        if (!c)
            break;
    }
    if (!file_is_dir(buf))
        return tp_fail(err, TP_E_EXISTS, "%s: exists and is not a directory", path);
    return TP_OK;
}

tp_status file_join(char path[PATH_MAX], const char *dir, const char *name, struct tp_err *err)
{
    if (snprintf(path, PATH_MAX, "%s/%s", dir, name) < PATH_MAX)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "%.200s.../%.100s: the path is too long", dir, name);
}

bool file_exists(const char *path)
{
    struct stat sb;

    return lstat(path, &sb) == 0;
}

bool file_is_dir(const char *path)
{
    struct stat sb;

    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

bool file_is_same(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool file_name_is_plain(const char *name)
{
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strlen(name) > NAME_MAX)
        return false;
    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        if (*p == '/' || *p < 0x20 || *p == 0x7f)
            return false;
    return true;
}

bool file_same_system(const char *dir, const char *path)
{
    char at[PATH_MAX];
    struct stat a, b;

    if (stat(dir, &a) != 0 || snprintf(at, sizeof at, "%s", path) >= (int)sizeof at)
        return false;
    while (stat(at, &b) != 0) {
        char *slash = strrchr(at, '/');

        if (strcmp(at, ".") == 0 || strcmp(at, "/") == 0) /* a folder that may not be entered */
            return false;
        if (!slash)
            snprintf(at, sizeof at, ".");
        else
            slash[slash == at] = 0;
    }
    return a.st_dev == b.st_dev;
}
