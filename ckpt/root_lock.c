/*
 * ckpt/root_lock.c - see ckpt/root_lock.h.
 *
 * The lock is held for a moment only, so waiting for it has no time limit. There are two
 * exceptions, holders that may never release it: a process that is stopped (by SIGSTOP; a frozen
 * cgroup is not recognized), and a process that is not found on this host, because it runs on
 * another one that may be cut off.
 */
#include "ckpt/root_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/process_stat.h"

static const double STOPPED_S = 10, UNKNOWN_S = 600;

bool root_lock_unsupported(int error)
{
    return error == ENOSYS || error == ENOLCK || error == EOPNOTSUPP || error == EBADF ||
           error == EINVAL;
}

struct root_lock_holder {
    long pid;                 /* 0: unknown */
    struct process_stat stat; /* zeroed: unknown */
};

/* The process that has locked this file, found by device and inode (proc(5), /proc/locks); 0:
 * unknown. */
static long find_pid(const struct stat *sb)
{
    FILE *f = fopen("/proc/locks", "re");
    char line[256], id[64];
    long pid = 0;

    if (!f)
        return 0;
    snprintf(id, sizeof id, " %02x:%02x:%llu ", major(sb->st_dev), minor(sb->st_dev),
             (unsigned long long)sb->st_ino);
    while (!pid && fgets(line, sizeof line, f)) { /* "1: FLOCK  ADVISORY  WRITE 41 08:01:7 0 EOF" */
        const char *write = strstr(line, " WRITE ");

        if (write && strstr(line, " FLOCK ") && !strstr(line, "->") && strstr(write, id))
            pid = strtol(write + 7, NULL, 10);
    }
    fclose(f);
    return pid > 0 ? pid : 0;
}

static void find_holder(struct root_lock_holder *h, int fd)
{
    struct stat sb;

    *h = (struct root_lock_holder){ .pid = fstat(fd, &sb) == 0 ? find_pid(&sb) : 0 };
    if (h->pid)
        process_stat_read(&h->stat, (pid_t)h->pid);
}

static bool is_stopped(const struct root_lock_holder *h)
{
    return h->stat.state == 'T' || h->stat.state == 't';
}

static void describe_holder(struct tp_err *err, const char *path, const struct root_lock_holder *h)
{
    if (h->pid)
        tp_fail(err, TP_E_IO,
                "%s: is held by process %ld (%s%s); it is free when that process releases it or "
                "ends",
                path, h->pid, h->stat.name[0] ? h->stat.name : "not visible from here",
                is_stopped(h) ? ", stopped" : "");
    else
        tp_fail(err, TP_E_IO,
                "%s: is held by a process that is not on this host; it is free when that process "
                "ends",
                path);
}

static tp_status open_lock(int *fd, char path[PATH_MAX], const char *root, int flags,
                           struct tp_err *err)
{
    tp_status st = file_join(path, root, "lock", err);

    if (st)
        return st;
    *fd = open(path, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    return *fd >= 0 ? TP_OK : tp_fail_errno(err, "%s: cannot open", path);
}

/* Whether to stop waiting for a lock that has been held since `from`; then *h is the holder. The
 * holder is looked up late, because every commit takes the lock and /proc/locks lists all locks of
 * the host. */
static bool is_hopeless(struct root_lock_holder *h, int fd, double from)
{
    double waited = clock_seconds() - from;

    if (waited <= STOPPED_S)
        return false;
    find_holder(h, fd);
    return is_stopped(h) || (!h->pid && waited > UNKNOWN_S);
}

tp_status root_lock(int *fd, const char *root, struct tp_err *err)
{
    const struct timespec pause = { 0, 10000000 };
    double from = clock_seconds();
    char path[PATH_MAX];
    int f;
    tp_status st = open_lock(&f, path, root, O_CREAT, err);

    if (st)
        return st;
    while (flock(f, LOCK_EX | LOCK_NB) != 0 && !root_lock_unsupported(errno)) {
        struct root_lock_holder h;

        if (errno != EWOULDBLOCK && errno != EINTR) {
            tp_fail_errno(err, "%s: cannot lock", path);
            close(f);
            return TP_E_IO;
        }
        if (is_hopeless(&h, f, from)) {
            describe_holder(err, path, &h);
            close(f);
            return TP_E_IO;
        }
        nanosleep(&pause, NULL);
    }
    *fd = f;
    return TP_OK;
}

bool root_lock_is_held(const char *root, struct tp_err *holder)
{
    struct root_lock_holder h;
    char path[PATH_MAX];
    bool held;
    int f;

    if (open_lock(&f, path, root, 0, holder))
        return false;
    held = flock(f, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (held) {
        find_holder(&h, f);
        describe_holder(holder, path, &h);
    }
    close(f);
    return held;
}
