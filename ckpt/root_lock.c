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

#include "ckpt/access.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/process_stat.h"
#include "core/stop.h"

static const double SAY_S = 1, STOPPED_S = 10, UNKNOWN_S = 600;

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
                "%s: is held by a process that is not on this host, or hidden from this one; it is "
                "free when that process ends",
                path);
}

static tp_status open_lock(int *fd, char path[PATH_MAX], const char *root, int flags,
                           struct tp_err *err)
{
    tp_status st = file_join(path, root, "lock", err);

    if (st)
        return st;
    *fd = open(path, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (*fd < 0)
        return tp_fail_errno(err, "%s: cannot open", path);
    access_limit(*fd, root);
    return TP_OK;
}

/* A wait for the lock. */
struct root_lock_waiting {
    const struct root_lock_wait *how;
    const char *path;
    int fd;
    double from; /* when it began */
    bool said;
};

static void say(struct root_lock_waiting *w)
{
    struct root_lock_holder h;
    struct tp_err held = { 0 };
    char sentence[TP_ERR_MAX];

    find_holder(&h, w->fd);
    describe_holder(&held, w->path, &h);
    snprintf(sentence, sizeof sentence, "waiting for the lock of the checkpoint root: %.900s",
             held.msg);
    w->how->notify(w->how->ctx, sentence);
}

/* One look at a lock that is held: TP_OK to continue waiting. The holder is looked up late, because
 * every commit takes the lock and /proc/locks lists all locks of the host. */
static tp_status check_wait(struct root_lock_waiting *w, struct tp_err *err)
{
    double waited = clock_seconds() - w->from;
    struct root_lock_holder h;

    if (waited >= w->how->stop_after_s && stop_requested()) {
        find_holder(&h, w->fd);
        describe_holder(err, w->path, &h);
        tp_fail_in(err, "stopped on request while waiting for a lock");
        return err->status = TP_E_STOPPED;
    }
    if (waited > SAY_S && !w->said && w->how->notify) {
        say(w);
        w->said = true;
    }
    if (waited <= STOPPED_S)
        return TP_OK;
    find_holder(&h, w->fd);
    if (is_stopped(&h) || (!h.pid && waited > UNKNOWN_S)) {
        describe_holder(err, w->path, &h);
        return TP_E_IO;
    }
    return TP_OK;
}

/* Whether the descriptor is of the file that has the name now. root_remove_if_empty removes the
 * file while others wait for it: what they get then is a lock that nobody else looks at. */
static bool has_name(int fd, const char *path)
{
    struct stat mine, named;

    return fstat(fd, &mine) == 0 && lstat(path, &named) == 0 && mine.st_dev == named.st_dev &&
           mine.st_ino == named.st_ino;
}

/* Open ROOT/lock, and wait until this process has locked it. *fd is -1 after a failure. */
static tp_status lock_file(int *fd, char path[PATH_MAX], const char *root, double from,
                           const struct root_lock_wait *wait, struct tp_err *err)
{
    const struct timespec pause = { 0, 10000000 };
    int f = -1;
    tp_status st = open_lock(&f, path, root, O_CREAT, err);
    struct root_lock_waiting w = { .how = wait, .path = path, .fd = f, .from = from };

    while (!st && flock(f, LOCK_EX | LOCK_NB) != 0 && !root_lock_unsupported(errno)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            st = tp_fail_errno(err, "%s: cannot lock", path);
        else if (!(st = check_wait(&w, err)))
            nanosleep(&pause, NULL);
    }
    if (st && f >= 0)
        close(f);
    *fd = st ? -1 : f;
    return st;
}

tp_status root_lock(int *fd, const char *root, const struct root_lock_wait *wait,
                    struct tp_err *err)
{
    enum { TRIES = 1000 }; /* some network file systems give a file a new number each time */
    const double from = clock_seconds();
    char path[PATH_MAX];
    int f;
    tp_status st = lock_file(&f, path, root, from, wait, err);

    for (int i = 1; i < TRIES && !st && !has_name(f, path); i++) {
        close(f);
        st = lock_file(&f, path, root, from, wait, err);
    }
    if (!st)
        *fd = f;
    return st;
}

tp_status root_lock_make(int *fd, const char *root, const struct root_lock_wait *wait,
                         struct tp_err *err)
{
    enum { TRIES = 3 };
    tp_status st = TP_OK;

    for (int i = 0; i < TRIES; i++) {
        if ((st = file_make_dirs(root, err)))
            break;
        st = root_lock(fd, root, wait, err);
        if (!st || file_exists(root))
            break;
    }
    return st;
}

bool root_lock_try(int *fd, const char *root)
{
    struct tp_err ignored;
    char path[PATH_MAX];
    int f;

    if (open_lock(&f, path, root, O_CREAT, &ignored))
        return false;
    if ((flock(f, LOCK_EX | LOCK_NB) != 0 && !root_lock_unsupported(errno)) || !has_name(f, path)) {
        close(f);
        return false;
    }
    *fd = f;
    return true;
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
