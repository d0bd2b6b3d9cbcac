/*
 * tests/fault/record.c - record every change of the file system that a program makes, with its
 * data.
 *
 * Preloaded (LD_PRELOAD), it does each call that changes something below one folder and appends
 * what was done to a log. tests/cli/power_cut.py builds from the log the disk states that a power
 * cut may leave. One lock around call and record makes the log's order the order of the calls, over
 * all threads and processes of the job.
 *
 *   TP_RECORD_UNDER  absolute path: only changes on it and below it are recorded
 *   TP_RECORD_LOCK   file of at least 8 bytes, zeroed by the test
 *   TP_RECORD_LOG    the log
 *
 * A record is, little-endian: u32 operation, u32 bytes of the first path, u32 of the second, u32 0,
 * u64 inode, i64 a, i64 b, u64 bytes of data; the paths; the data. The operations are below. A call
 * that failed is not recorded. A program under test may call record_mark(n), which records that it
 * has promised something, for example that its n-th record is durable.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "preload.h"

enum operation {
    CREATE = 1, /* path, inode */
    TRUNCATE,   /* inode, a: size */
    WRITE,      /* inode, a: offset, data */
    ALLOCATE,   /* inode, a: offset, b: bytes; the size grows to hold them */
    SYNC,       /* inode: of a file or a directory */
    MKDIR,      /* path, inode */
    RENAME,     /* path, second path, a: flags of renameat2 */
    LINK,       /* path, second path */
    UNLINK,     /* path */
    RMDIR,      /* path */
    SYMLINK,    /* path, second path: the target */
    MARK,       /* a: number */
};

struct record {
    uint32_t operation, path_bytes, other_bytes, zero;
    uint64_t inode;
    int64_t a, b;
    uint64_t data_bytes;
};

struct change {
    enum operation operation;
    char path[PATH_MAX], other[PATH_MAX];
    uint64_t inode;
    int64_t a, b;
    const void *data;
    size_t bytes;
};

static bool is_under(const char *path)
{
    return preload_ready && preload_is_under(path, "TP_RECORD_UNDER");
}

/* ---- the lock and the log ---- */

static _Atomic(uint64_t) *lock_word(void)
{
    _Atomic(uint64_t) *word = preload_word("TP_RECORD_LOCK");

    if (!word)
        abort();
    return word;
}

static void lock(void)
{
    uint64_t expected = 0;

    while (!atomic_compare_exchange_weak(lock_word(), &expected, 1)) {
        expected = 0;
        sched_yield();
    }
}

static void unlock(void)
{
    int e = errno;

    atomic_store(lock_word(), 0);
    errno = e;
}

static void append(const struct change *c)
{
    struct record r = { .operation = c->operation,
                        .path_bytes = (uint32_t)strlen(c->path),
                        .other_bytes = (uint32_t)strlen(c->other),
                        .inode = c->inode,
                        .a = c->a,
                        .b = c->b,
                        .data_bytes = c->data ? c->bytes : 0 };
    struct iovec parts[] = { { &r, sizeof r },
                             { (void *)(uintptr_t)c->path, r.path_bytes },
                             { (void *)(uintptr_t)c->other, r.other_bytes },
                             { (void *)(uintptr_t)c->data, r.data_bytes } };
    long fd = syscall(SYS_openat, AT_FDCWD, getenv("TP_RECORD_LOG"),
                      O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    size_t all = sizeof r + r.path_bytes + r.other_bytes + r.data_bytes;

    if (fd < 0 || syscall(SYS_writev, fd, parts, 4) != (long)all)
        abort();
    syscall(SYS_close, fd);
}

/* Record what a call with this result has done, and unlock. Returns the result; errno is kept. */
static long finish(struct change *c, long result)
{
    int e = errno;

    if (result >= 0)
        append(c);
    errno = e;
    unlock();
    return result;
}

/* ---- calls on a path ---- */

static uint64_t inode_of_path(const char *path)
{
    struct stat sb;

    return syscall(SYS_newfstatat, AT_FDCWD, path, &sb, AT_SYMLINK_NOFOLLOW) == 0 ? sb.st_ino : 0;
}

static uint64_t inode_of(int fd)
{
    struct stat sb;

    return syscall(SYS_fstat, fd, &sb) == 0 ? sb.st_ino : 0;
}

int preload_open_at(int dirfd, const char *path, int flags, mode_t mode)
{
    struct change c = { .operation = CREATE };
    bool existed;
    int fd;

    if (preload_ready && flags & (O_CREAT | O_TRUNC))
        preload_path_at(c.path, dirfd, path);
    if (!is_under(c.path))
        return (int)syscall(SYS_openat, dirfd, path, flags, mode);
    lock();
    existed = inode_of_path(c.path) != 0;
    fd = (int)syscall(SYS_openat, dirfd, path, flags, mode);
    if (fd >= 0)
        c.inode = inode_of(fd);
    if (fd >= 0 && existed && !(flags & O_TRUNC)) {
        unlock();
        return fd;
    }
    if (existed) {
        c.operation = TRUNCATE;
        c.path[0] = '\0';
    }
    return (int)finish(&c, fd);
}

int mkdirat(int dirfd, const char *path, mode_t mode)
{
    struct change c = { .operation = MKDIR };
    long rc;

    preload_path_at(c.path, dirfd, path);
    if (!is_under(c.path))
        return (int)syscall(SYS_mkdirat, dirfd, path, mode);
    lock();
    rc = syscall(SYS_mkdirat, dirfd, path, mode);
    if (rc == 0)
        c.inode = inode_of_path(c.path);
    return (int)finish(&c, rc);
}

int unlinkat(int dirfd, const char *path, int flags)
{
    struct change c = { .operation = flags & AT_REMOVEDIR ? RMDIR : UNLINK };

    preload_path_at(c.path, dirfd, path);
    if (!is_under(c.path))
        return (int)syscall(SYS_unlinkat, dirfd, path, flags);
    lock();
    return (int)finish(&c, syscall(SYS_unlinkat, dirfd, path, flags));
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    struct change c = { .operation = RENAME, .a = flags };

    preload_path_at(c.path, from_fd, from);
    preload_path_at(c.other, to_fd, to);
    if (!is_under(c.path) && !is_under(c.other))
        return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    lock();
    return (int)finish(&c, syscall(SYS_renameat2, from_fd, from, to_fd, to, flags));
}

int symlinkat(const char *target, int dirfd, const char *path)
{
    struct change c = { .operation = SYMLINK };

    preload_path_at(c.path, dirfd, path);
    snprintf(c.other, sizeof c.other, "%s", target);
    if (!is_under(c.path))
        return (int)syscall(SYS_symlinkat, target, dirfd, path);
    lock();
    return (int)finish(&c, syscall(SYS_symlinkat, target, dirfd, path));
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    struct change c = { .operation = LINK };

    preload_path_at(c.path, from_fd, from);
    preload_path_at(c.other, to_fd, to);
    if (!is_under(c.other))
        return (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
    lock();
    return (int)finish(&c, syscall(SYS_linkat, from_fd, from, to_fd, to, flags));
}

/* ---- calls on a descriptor ---- */

/* Whether fd is a file below the folder, or a directory there. */
static bool fd_is_under(int fd)
{
    char path[PATH_MAX] = "";
    int e = errno;

    if (preload_ready)
        preload_path_of(path, fd);
    errno = e;
    return is_under(path);
}

/* Record a write that returned `done`. at < 0: it ended at the descriptor's position. */
static ssize_t finish_write(int fd, const void *buf, ssize_t done, off_t at)
{
    struct change c = { .operation = WRITE, .inode = inode_of(fd), .data = buf };

    if (done > 0) {
        c.bytes = (size_t)done;
        c.a = at >= 0 ? at : syscall(SYS_lseek, fd, 0, SEEK_CUR) - done;
    }
    if (done <= 0) {
        unlock();
        return done;
    }
    return finish(&c, done);
}

ssize_t write(int fd, const void *buf, size_t n)
{
    if (!fd_is_under(fd))
        return syscall(SYS_write, fd, buf, n);
    lock();
    return finish_write(fd, buf, syscall(SYS_write, fd, buf, n), -1);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t offset)
{
    if (!fd_is_under(fd))
        return syscall(SYS_pwrite64, fd, buf, n, offset);
    lock();
    return finish_write(fd, buf, syscall(SYS_pwrite64, fd, buf, n, offset), offset);
}

/* A short write is allowed, so the first part alone is written. */
ssize_t writev(int fd, const struct iovec *v, int n)
{
    int i = 0;

    if (!fd_is_under(fd))
        return syscall(SYS_writev, fd, v, n);
    while (i < n - 1 && !v[i].iov_len)
        i++;
    return n > 0 ? write(fd, v[i].iov_base, v[i].iov_len) : 0;
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t offset)
{
    int i = 0;

    if (!fd_is_under(fd))
        return syscall(SYS_pwritev, fd, v, n, offset, 0);
    while (i < n - 1 && !v[i].iov_len)
        i++;
    return n > 0 ? pwrite(fd, v[i].iov_base, v[i].iov_len, offset) : 0;
}

/* Programs copy with read and write where this is missing. */
ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t n, unsigned flags)
{
    if (!fd_is_under(out))
        return syscall(SYS_copy_file_range, in, in_at, out, out_at, n, flags);
    errno = ENOSYS;
    return -1;
}

static int sync_fd(int fd, long number)
{
    struct change c = { .operation = SYNC, .inode = inode_of(fd) };

    if (!fd_is_under(fd))
        return (int)syscall(number, fd);
    lock();
    return (int)finish(&c, syscall(number, fd));
}

int fsync(int fd)
{
    return sync_fd(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return sync_fd(fd, SYS_fdatasync);
}

int ftruncate(int fd, off_t n)
{
    struct change c = { .operation = TRUNCATE, .inode = inode_of(fd), .a = n };

    if (!fd_is_under(fd))
        return (int)syscall(SYS_ftruncate, fd, n);
    lock();
    return (int)finish(&c, syscall(SYS_ftruncate, fd, n));
}

int fallocate(int fd, int mode, off_t offset, off_t n)
{
    struct change c = { .operation = ALLOCATE, .inode = inode_of(fd), .a = offset, .b = n };

    if (!fd_is_under(fd))
        return (int)syscall(SYS_fallocate, fd, mode, offset, n);
    lock();
    if (mode) { /* no program here uses one; the checker would see a different end */
        unlock();
        errno = EOPNOTSUPP;
        return -1;
    }
    return (int)finish(&c, syscall(SYS_fallocate, fd, mode, offset, n));
}

void record_mark(int64_t number);

void record_mark(int64_t number)
{
    struct change c = { .operation = MARK, .a = number };

    lock();
    finish(&c, 0);
}
