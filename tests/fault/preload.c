/* tests/fault/preload.c - see tests/fault/preload.h. */
#include "preload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

bool preload_ready;

__attribute__((constructor)) static void start(void)
{
    preload_ready = true;
}

bool preload_is_under(const char *path, const char *variable)
{
    const char *under = getenv(variable);
    size_t n = under ? strlen(under) : 0;

    return n && !strncmp(path, under, n) && (path[n] == '/' || path[n] == '\0');
}

void preload_path_at(char out[PATH_MAX], int dirfd, const char *path)
{
    char dir[PATH_MAX] = "";

    if (path[0] != '/' && dirfd == AT_FDCWD)
        syscall(SYS_getcwd, dir, sizeof dir);
    else if (path[0] != '/')
        preload_path_of(dir, dirfd);
    if (snprintf(out, PATH_MAX, "%s%s%s", dir, dir[0] ? "/" : "", path) >= PATH_MAX)
        out[0] = '\0';
}

void preload_path_of(char out[PATH_MAX], int fd)
{
    char link[64];
    long n;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = syscall(SYS_readlinkat, AT_FDCWD, link, out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
}

_Atomic(uint64_t) *preload_word(const char *variable)
{
    static _Atomic(uint64_t) *word; /* every process maps the same page */
    const char *file = getenv(variable);

    if (!word && file) {
        long fd = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0);
        void *p =
            fd < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);

        if (p != MAP_FAILED)
            word = p;
        if (fd >= 0)
            syscall(SYS_close, fd);
    }
    return word;
}

/* ---- calls on a path ---- */

#define MODE_ARGUMENT(flags, mode)           \
    mode_t mode = 0;                         \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list ap;                          \
        va_start(ap, flags);                 \
        mode = va_arg(ap, mode_t);           \
        va_end(ap);                          \
    }

int open(const char *path, int flags, ...)
{
    MODE_ARGUMENT(flags, mode)
    return preload_open_at(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE_ARGUMENT(flags, mode)
    return preload_open_at(AT_FDCWD, path, flags, mode);
}

int openat(int dirfd, const char *path, int flags, ...)
{
    MODE_ARGUMENT(flags, mode)
    return preload_open_at(dirfd, path, flags, mode);
}

int openat64(int dirfd, const char *path, int flags, ...)
{
    MODE_ARGUMENT(flags, mode)
    return preload_open_at(dirfd, path, flags, mode);
}

int creat(const char *path, mode_t mode)
{
    return preload_open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int remove(const char *path)
{
    int rc = unlink(path);

    return rc && errno == EISDIR ? rmdir(path) : rc;
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return renameat2(from_fd, from, to_fd, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int link(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int symlink(const char *target, const char *path)
{
    return symlinkat(target, AT_FDCWD, path);
}

/* ---- calls on a descriptor ---- */

ssize_t pwrite64(int fd, const void *buf, size_t n, off_t offset)
{
    return pwrite(fd, buf, n, offset);
}

int ftruncate64(int fd, off64_t n)
{
    return ftruncate(fd, n);
}

int posix_fallocate(int fd, off_t offset, off_t n)
{
    return fallocate(fd, 0, offset, n) ? errno : 0;
}
