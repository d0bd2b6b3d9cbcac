/* ckpt/root_owner.c - see ckpt/root_owner.h. */
#include "ckpt/root_owner.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/root_lock.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/process_stat.h"
#include "core/text.h"

/* The file always has the same length, so one write replaces its text. */
enum { TEXT = 128, FILE_BYTES = 2048 };

static const char NAME[] = "owner", TMP[] = "owner.tmp";

/* The content of the file. Texts may be anything: others can write to a shared root. */
struct owner_record {
    char run[TEXT], job[TEXT], user[TEXT], host[TEXT];
    char boot[TEXT], pid_space[TEXT]; /* where pids are those of this process */
    int64_t pid, pid_start;
    int64_t child, child_start; /* 0: none */
    double since;               /* by the wall clock, for people */
};

struct root_owner {
    char root[PATH_MAX];
    int fd; /* the file, which keeps its inode */
    struct owner_record record;
};

/* ---- the record ---- */

static void read_line(char out[TEXT], const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, TEXT - 1) : -1;

    if (fd >= 0)
        close(fd);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\n")] = 0;
}

static void find_user(char out[TEXT])
{
    char buf[4096];
    struct passwd entry, *found = NULL;

    if (getpwuid_r(geteuid(), &entry, buf, sizeof buf, &found) == 0 && found)
        snprintf(out, TEXT, "%s", found->pw_name);
    else
        snprintf(out, TEXT, "%ld", (long)geteuid());
}

/* Where this process runs. */
static void describe_place(struct owner_record *o)
{
    ssize_t n;

    gethostname(o->host, sizeof o->host - 1);
    read_line(o->boot, "/proc/sys/kernel/random/boot_id");
    n = readlink("/proc/self/ns/pid", o->pid_space, sizeof o->pid_space - 1);
    o->pid_space[n > 0 ? n : 0] = 0;
}

static void describe_self(struct owner_record *o, const struct root_owner_claim *claim)
{
    struct process_stat self;

    *o = (struct owner_record){ .pid = getpid(), .since = clock_wall_seconds() };
    process_stat_self(&self);
    o->pid_start = self.start;
    snprintf(o->run, sizeof o->run, "%s", claim->run);
    snprintf(o->job, sizeof o->job, "%s", claim->job);
    text_clean(o->job);
    find_user(o->user);
    describe_place(o);
}

/* The text of the file. False: it is too long. */
static bool format(char text[FILE_BYTES], const struct owner_record *o)
{
    json_t *json = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:f}", "run", o->run, "job",
                             o->job, "user", o->user, "host", o->host, "boot", o->boot, "pid_space",
                             o->pid_space, "pid", (json_int_t)o->pid, "pid_start",
                             (json_int_t)o->pid_start, "child", (json_int_t)o->child, "child_start",
                             (json_int_t)o->child_start, "since", o->since);
    size_t n;

    memset(text, ' ', FILE_BYTES);
    n = json ? json_dumpb(json, text, FILE_BYTES - 1, JSON_COMPACT) : 0;
    text[FILE_BYTES - 1] = '\n';
    json_decref(json);
    return n > 0 && n < FILE_BYTES;
}

static void copy_text(char out[TEXT], const json_t *o, const char *name)
{
    const char *text = json_string_value(json_object_get(o, name));

    snprintf(out, TEXT, "%s", text ? text : "");
    text_clean(out);
}

static int64_t number_of(const json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

/* Read ROOT/owner and the time at which it was set. False: there is none, or it is damaged, so it
 * is not known whether the owner lives. */
static bool read_owner(struct owner_record *o, double *set_at, const char *root)
{
    struct arena arena = { 0 };
    struct tp_err ignored;
    char path[PATH_MAX], *text;
    struct stat sb;
    size_t n;
    json_t *json = NULL;
    bool ok = false;

    if (!file_join(path, root, NAME, &ignored) && lstat(path, &sb) == 0 &&
        file_read_own(&text, &n, path, FILE_BYTES, &arena, &ignored) == TP_OK)
        json = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(json)) {
        *o = (struct owner_record){ .pid = number_of(json, "pid"),
                                    .pid_start = number_of(json, "pid_start"),
                                    .child = number_of(json, "child"),
                                    .child_start = number_of(json, "child_start"),
                                    .since = json_number_value(json_object_get(json, "since")) };
        copy_text(o->run, json, "run");
        copy_text(o->job, json, "job");
        copy_text(o->user, json, "user");
        copy_text(o->host, json, "host");
        copy_text(o->boot, json, "boot");
        copy_text(o->pid_space, json, "pid_space");
        *set_at = (double)sb.st_mtim.tv_sec + (double)sb.st_mtim.tv_nsec / 1e9;
        ok = o->run[0] != 0;
    }
    json_decref(json);
    arena_free(&arena);
    return ok;
}

/* ---- whether it lives ---- */

enum owner_process { PROCESS_DEAD, PROCESS_LIVES, PROCESS_HIDDEN };

static enum owner_process look_at(int64_t pid, int64_t start)
{
    struct process_stat stat;

    if (pid <= 0 || pid > INT_MAX)
        return PROCESS_DEAD;
    if (process_stat_read(&stat, (pid_t)pid))
        return stat.start == start && stat.state != 'Z' ? PROCESS_LIVES : PROCESS_DEAD;
    return kill((pid_t)pid, 0) != 0 && errno == ESRCH ? PROCESS_DEAD : PROCESS_HIDDEN;
}

/* Whether the owner's pids are those of this process. */
static bool is_here(const struct owner_record *o)
{
    struct owner_record here;

    describe_place(&here);
    return strcmp(o->boot, here.boot) == 0 && strcmp(o->pid_space, here.pid_space) == 0;
}

/* now: the time of the file server. */
static bool is_live(const struct owner_record *o, double set_at, double now)
{
    bool beats = now - set_at < ROOT_OWNER_LEASE_S;
    enum owner_process owner, child;

    if (!is_here(o))
        return beats;
    owner = look_at(o->pid, o->pid_start);
    child = look_at(o->child, o->child_start);
    if (owner == PROCESS_LIVES || child == PROCESS_LIVES)
        return true;
    return (owner == PROCESS_HIDDEN || child == PROCESS_HIDDEN) && beats;
}

static tp_status refuse(const struct owner_record *o, const char *root, struct tp_err *err)
{
    static const double year_10000 = 253402300800;
    const time_t since = o->since > 0 && o->since < year_10000 ? (time_t)o->since : 0;
    char when[32] = "?", ranks[80] = "";
    struct tm t;

    if (since > 0 && localtime_r(&since, &t))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &t);
    if (is_here(o) && look_at(o->pid, o->pid_start) == PROCESS_DEAD)
        snprintf(ranks, sizeof ranks, ", was killed, and its ranks run on under pid %lld",
                 (long long)o->child);
    return tp_fail(err, TP_E_EXISTS,
                   "%s: belongs to job \"%s\" of user %s on host %s (tp-run has pid %lld%s, since "
                   "%s); stop that job, or use another root",
                   root, o->job, o->user, o->host, (long long)o->pid, ranks, when);
}

tp_status root_owner_check(const char *root, const char *run, struct tp_err *err)
{
    struct owner_record o;
    double set_at;

    if (!read_owner(&o, &set_at, root) || strcmp(o.run, run) == 0 ||
        !is_live(&o, set_at, clock_wall_seconds()))
        return TP_OK;
    return refuse(&o, root, err);
}

/* ---- claiming ---- */

/* Write the record to ROOT/owner.tmp. *now: the time of the file server. */
static tp_status write_tmp(int *fd, double *now, const struct owner_record *o, const char *tmp,
                           struct tp_err *err)
{
    char text[FILE_BYTES];
    struct stat sb;
    tp_status st;

    if (!format(text, o))
        return tp_fail(err, TP_E_INTERNAL, "%s: the record is too long", tmp);
    unlink(tmp); /* of a dead process: the caller has the lock */
    *fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (*fd < 0)
        return tp_fail_errno(err, "%s: cannot create", tmp);
    TP_TRY(file_write_at(*fd, tmp, 0, text, sizeof text, err));
    TP_TRY(file_sync(*fd, tmp, false, err));
    if (fstat(*fd, &sb) != 0)
        st = tp_fail_errno(err, "%s: cannot stat", tmp);
    else
        *now = (double)sb.st_mtim.tv_sec + (double)sb.st_mtim.tv_nsec / 1e9;
done:
    return st;
}

/* Under the lock of the root: write the record, if no other live job has one. */
static tp_status replace(struct root_owner *o, struct tp_err *err)
{
    char path[PATH_MAX], tmp[PATH_MAX];
    struct owner_record other;
    double now = 0, set_at;
    int fd = -1;
    tp_status st;

    TP_TRY(file_join(path, o->root, NAME, err));
    TP_TRY(file_join(tmp, o->root, TMP, err));
    TP_TRY(write_tmp(&fd, &now, &o->record, tmp, err));
    if (read_owner(&other, &set_at, o->root) && strcmp(other.run, o->record.run) != 0 &&
        is_live(&other, set_at, now))
        TP_TRY(refuse(&other, o->root, err));
    if (rename(tmp, path) != 0)
        TP_TRY(tp_fail_errno(err, "%s: cannot rename %s to it", path, tmp));
    if (o->fd >= 0)
        close(o->fd);
    o->fd = fd;
    fd = -1;
done:
    if (fd >= 0)
        close(fd);
    if (st)
        unlink(tmp);
    return st;
}

tp_status root_owner_claim(struct root_owner **out, const char *root,
                           const struct root_owner_claim *claim, struct tp_err *err)
{
    struct root_owner *o = calloc(1, sizeof *o);
    int lock = -1;
    tp_status st;

    if (!o)
        return tp_fail(err, TP_E_NOMEM, "no memory");
    o->fd = -1;
    snprintf(o->root, sizeof o->root, "%s", root);
    describe_self(&o->record, claim);
    TP_TRY(root_lock(&lock, root, &(struct root_lock_wait){ 0 }, err));
    TP_TRY(replace(o, err));
    *out = o;
    o = NULL;
done:
    if (lock >= 0)
        close(lock);
    root_owner_close(o, false);
    return st;
}

/* Whether ROOT/owner is still the file that this process wrote. */
static bool is_ours(const struct root_owner *o, const char *path)
{
    struct stat mine, now;

    return o->fd >= 0 && fstat(o->fd, &mine) == 0 && lstat(path, &now) == 0 &&
           mine.st_dev == now.st_dev && mine.st_ino == now.st_ino;
}

void root_owner_set_child(struct root_owner *o, int64_t pid, int64_t start)
{
    char text[FILE_BYTES];

    o->record.child = pid;
    o->record.child_start = start;
    if (o->fd >= 0 && format(text, &o->record))
        (void)!pwrite(o->fd, text, sizeof text, 0); /* the file may be another owner's by now, but
                                                       not the inode */
}

void root_owner_beat(struct root_owner *o)
{
    if (o->fd >= 0)
        futimens(o->fd, NULL);
}

void root_owner_close(struct root_owner *o, bool release)
{
    char path[PATH_MAX];
    struct tp_err ignored;

    if (!o)
        return;
    if (release && !file_join(path, o->root, NAME, &ignored) && is_ours(o, path))
        unlink(path);
    if (o->fd >= 0)
        close(o->fd);
    free(o);
}
