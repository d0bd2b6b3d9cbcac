/* ckpt/root_lock.c - ROOT/lock of ckpt/root.h, and who holds it.
 *
 * It is held for moments, so waiting for it has no limit, but for two holders that may never give
 * it back: a process that is stopped (SIGSTOP, a frozen cgroup is not seen), and one that cannot be
 * found here, as on another host that is cut off. */
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

#include "ckpt/commit.h"
#include "ckpt/root.h"
#include "ckpt/step.h"
#include "core/clock.h"
#include "core/process_stat.h"

static const double STOPPED_S = 10, UNKNOWN_S = 600;

bool root_lock_unsupported(int error)
{
    return error == ENOSYS || error == ENOLCK || error == EOPNOTSUPP || error == EBADF ||
           error == EINVAL;
}

struct holder {
    long pid;                 /* 0: not known */
    struct process_stat stat; /* zeroed: not known */
};

/* The process that has a lock on the file, by its device and inode (proc(5), /proc/locks). */
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

static void find_holder(struct holder *h, int fd)
{
    struct stat sb;

    *h = (struct holder){ .pid = fstat(fd, &sb) == 0 ? find_pid(&sb) : 0 };
    if (h->pid)
        process_stat_read(&h->stat, (pid_t)h->pid);
}

static bool is_stopped(const struct holder *h)
{
    return h->stat.state == 'T' || h->stat.state == 't';
}

static void say_holder(struct tp_err *err, const char *path, const struct holder *h)
{
    if (h->pid)
        tp_fail(err, TP_E_IO,
                "%s: held by process %ld (%s%s); this goes on when that has ended or given it back",
                path, h->pid, h->stat.name[0] ? h->stat.name : "not to be seen from here",
                is_stopped(h) ? ", stopped" : "");
    else
        tp_fail(err, TP_E_IO,
                "%s: held by a process that is not on this host; this goes on when that has ended",
                path);
}

static tp_status open_lock(int *fd, char path[PATH_MAX], const char *root, int how,
                           struct tp_err *err)
{
    tp_status st = step_path(path, root, "lock", err);

    if (st)
        return st;
    *fd = open(path, how | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    return *fd >= 0 ? TP_OK : tp_fail_errno(err, "%s: cannot open", path);
}

/* Whether to give up a lock that was not free since `from`; then who holds it. Not looked into
 * before it can matter: a lock is waited for at every commit, and /proc/locks lists all there are.
 */
static bool is_hopeless(struct holder *h, int fd, double from)
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
        struct holder h;

        if (errno != EWOULDBLOCK && errno != EINTR) {
            tp_fail_errno(err, "%s: cannot lock", path);
            close(f);
            return TP_E_IO;
        }
        if (is_hopeless(&h, f, from)) {
            say_holder(err, path, &h);
            close(f);
            return TP_E_IO;
        }
        nanosleep(&pause, NULL);
    }
    *fd = f;
    return TP_OK;
}

bool ckpt_is_busy(const char *root, struct tp_err *who)
{
    char path[PATH_MAX];
    struct holder h;
    bool busy;
    int f;

    if (open_lock(&f, path, root, 0, who))
        return false;
    busy = flock(f, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (busy) {
        find_holder(&h, f);
        say_holder(who, path, &h);
    }
    close(f);
    return busy;
}
