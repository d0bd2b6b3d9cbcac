/*
 * tests/fault/shim.c - kill a program, or make a call fail, at its n-th change of the file system.
 *
 * Preloaded (LD_PRELOAD), it numbers every call that changes something below one folder: create,
 * write, sync, truncate, rename, link, remove, and close of a file that was open for writing. All
 * processes of the job share one counter, in a file that they map.
 *
 *   TP_FAULT_UNDER    absolute path: only calls on it and below it count; without it, no calls do
 *   TP_FAULT_COUNTER  file of at least 8 bytes, zeroed by the test: the shared counter
 *   TP_FAULT_AT       the number of the call to act at (from 1); 0 or absent: only count
 *   TP_FAULT_DO       kill: SIGKILL to the whole process group, before the call
 *                     kill-self: SIGKILL to the calling process alone
 *                     torn: write one half, then as kill
 *                     enospc, eio: the call fails with this error; with enospc also every later
 *                     call that needs space, because a full disk stays full
 *                     short: a write writes one half and returns its length
 *                     eintr: a write or fsync is interrupted once
 *   TP_FAULT_PLAIN    renameat2 with flags fails, as on NFS
 *   TP_FAULT_BUSY     name of files that cannot be removed, as on NFS what another process reads
 *   TP_FAULT_LOG      file to which each call appends "number call path"
 *
 * It does not see calls that the C library makes internally (stdio). So a test compares the log
 * with strace.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
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

static const char UNDER[] = "TP_FAULT_UNDER";

enum action { PROCEED, FAIL, SHORT };

/* The paths that a call names; only rename and link have a second one. */
struct what {
    const char *call;
    char path[PATH_MAX], other[PATH_MAX];
    size_t bytes;     /* of a write, else 0 */
    bool takes_space; /* it fails on a full disk */
};

/* The path of a descriptor that is open for writing; "" for others. */
static void path_of(char out[PATH_MAX], int fd, bool any_mode)
{
    long flags = syscall(SYS_fcntl, fd, F_GETFL);

    out[0] = '\0';
    if (flags >= 0 && (any_mode || (flags & O_ACCMODE) != O_RDONLY))
        preload_path_of(out, fd);
}

static uint64_t next_number(void)
{
    _Atomic(uint64_t) *counter = preload_word("TP_FAULT_COUNTER");

    return counter ? atomic_fetch_add(counter, 1) + 1 : 0;
}

static void note(uint64_t number, const struct what *w)
{
    char line[PATH_MAX + 64];
    const char *file = getenv("TP_FAULT_LOG");
    long fd;
    int n;

    if (!file)
        return;
    fd = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return;
    n = snprintf(line, sizeof line, "%llu %s %s\n", (unsigned long long)number, w->call, w->path);
    syscall(SYS_write, fd, line, n);
    syscall(SYS_close, fd);
}

static void die(bool all)
{
    syscall(SYS_kill, all ? 0 : (pid_t)syscall(SYS_getpid), SIGKILL);
    for (;;)
        syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0); /* arm64 has no SYS_pause */
}

/* What this call must do. Sets errno for FAIL. */
static enum action decide(const struct what *w)
{
    const char *at = getenv("TP_FAULT_AT"), *what = getenv("TP_FAULT_DO");
    uint64_t number, when = at ? strtoull(at, NULL, 10) : 0;

    if (!preload_is_under(w->path, UNDER) && !preload_is_under(w->other, UNDER))
        return PROCEED;
    number = next_number();
    note(number, w);
    if (!when || !what || number < when)
        return PROCEED;
    if (!strcmp(what, "enospc") && w->takes_space) {
        errno = ENOSPC;
        return FAIL;
    }
    if (number > when)
        return PROCEED;
    if (!strcmp(what, "kill") || !strcmp(what, "kill-self"))
        die(!strcmp(what, "kill"));
    if (!strcmp(what, "torn") && w->bytes < 2)
        die(true);
    if (!strcmp(what, "eio")) {
        errno = EIO;
        return FAIL;
    }
    if (!strcmp(what, "eintr") && (w->bytes || !strcmp(w->call, "fsync"))) {
        errno = EINTR;
        return FAIL;
    }
    return (!strcmp(what, "short") || !strcmp(what, "torn")) && w->bytes > 1 ? SHORT : PROCEED;
}

static void after_short(void)
{
    const char *what = getenv("TP_FAULT_DO");

    if (what && !strcmp(what, "torn"))
        die(true);
}

/* ---- calls on a path --------------------------------------------------------------------- */

int preload_open_at(int dirfd, const char *path, int flags, mode_t mode)
{
    struct what w = { .call = "open", .takes_space = true };

    if (preload_ready && flags & (O_CREAT | O_TRUNC)) {
        preload_path_at(w.path, dirfd, path);
        if (decide(&w) == FAIL)
            return -1;
    }
    return (int)syscall(SYS_openat, dirfd, path, flags, mode);
}

/* Whether the call on one path, or on two, may continue. */
static bool path_allowed(const char *call, int dirfd, const char *path, int other_dirfd,
                         const char *other, bool takes_space)
{
    struct what w = { .call = call, .takes_space = takes_space };

    if (!preload_ready)
        return true;
    preload_path_at(w.path, dirfd, path);
    if (other)
        preload_path_at(w.other, other_dirfd, other);
    return decide(&w) != FAIL;
}

int mkdirat(int dirfd, const char *path, mode_t mode)
{
    if (!path_allowed("mkdir", dirfd, path, 0, NULL, true))
        return -1;
    return (int)syscall(SYS_mkdirat, dirfd, path, mode);
}

int unlinkat(int dirfd, const char *path, int flags)
{
    const char *busy = getenv("TP_FAULT_BUSY");

    if (busy && strcmp(path, busy) == 0) {
        errno = EBUSY;
        return -1;
    }
    if (!path_allowed(flags & AT_REMOVEDIR ? "rmdir" : "unlink", dirfd, path, 0, NULL, false))
        return -1;
    return (int)syscall(SYS_unlinkat, dirfd, path, flags);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    if (flags && getenv("TP_FAULT_PLAIN")) {
        errno = EINVAL;
        return -1;
    }
    if (!path_allowed("rename", from_fd, from, to_fd, to, false))
        return -1;
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

int symlinkat(const char *target, int dirfd, const char *path)
{
    if (!path_allowed("symlink", dirfd, path, 0, NULL, true))
        return -1;
    return (int)syscall(SYS_symlinkat, target, dirfd, path);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    if (!path_allowed("link", from_fd, from, to_fd, to, true))
        return -1;
    return (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
}

/* ---- calls on a descriptor --------------------------------------------------------------- */

static enum action fd_decide(const char *call, int fd, size_t bytes, bool takes_space)
{
    struct what w = { .call = call, .bytes = bytes, .takes_space = takes_space };

    if (!preload_ready)
        return PROCEED;
    path_of(w.path, fd, !strcmp(call, "fsync")); /* directories are open for reading only */
    return decide(&w);
}

ssize_t write(int fd, const void *buf, size_t n)
{
    enum action a = fd_decide("write", fd, n, true);
    ssize_t done;

    if (a == FAIL)
        return -1;
    done = syscall(SYS_write, fd, buf, a == SHORT ? n / 2 : n);
    if (a == SHORT)
        after_short();
    return done;
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t offset)
{
    enum action a = fd_decide("pwrite", fd, n, true);
    ssize_t done;

    if (a == FAIL)
        return -1;
    done = syscall(SYS_pwrite64, fd, buf, a == SHORT ? n / 2 : n, offset);
    if (a == SHORT)
        after_short();
    return done;
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
    if (fd_decide("writev", fd, 0, true) == FAIL)
        return -1;
    return syscall(SYS_writev, fd, v, n);
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t offset)
{
    if (fd_decide("pwritev", fd, 0, true) == FAIL)
        return -1;
    return syscall(SYS_pwritev, fd, v, n, offset, 0);
}

ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t n, unsigned flags)
{
    if (fd_decide("copy_file_range", out, 0, true) == FAIL)
        return -1;
    return syscall(SYS_copy_file_range, in, in_at, out, out_at, n, flags);
}

int fsync(int fd)
{
    return fd_decide("fsync", fd, 0, false) == FAIL ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return fd_decide("fsync", fd, 0, false) == FAIL ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int ftruncate(int fd, off_t n)
{
    return fd_decide("ftruncate", fd, 0, true) == FAIL ? -1 : (int)syscall(SYS_ftruncate, fd, n);
}

int fallocate(int fd, int mode, off_t offset, off_t n)
{
    if (fd_decide("fallocate", fd, 0, true) == FAIL)
        return -1;
    return (int)syscall(SYS_fallocate, fd, mode, offset, n);
}

/* A close that fails has closed the file, too. */
int close(int fd)
{
    enum action a = fd_decide("close", fd, 0, false);
    int e = errno, rc = (int)syscall(SYS_close, fd);

    if (a != FAIL)
        return rc;
    errno = e;
    return -1;
}
