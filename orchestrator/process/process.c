/* orchestrator/process/process.c - see orchestrator/process/process.h. */
#include "orchestrator/process/process.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/process_stat.h"

enum {
    ENVIRON_MAX = 6 << 20, /* the kernel starts no program with more (execve(2)) */
    AGAIN_MAX = 1024,
    AGAIN_PAUSE_NS = 500 * 1000,
    SWEEP_PAUSE_NS = 20 * 1000 * 1000
};
static const double AGAIN_S = 1, READY_S = 10;

int process_pidfd(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

void process_signal(int pidfd, int sig)
{
    syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0);
}

/* The kernel's struct pidfd_info of 64 bytes (linux/pidfd.h). Older headers do not have it. */
struct process_pidfd_info {
    uint64_t mask; /* PIDFD_INFO_EXIT: asks for exit_code, and says that it is there */
    uint64_t cgroup;
    uint32_t pid, tgid, ppid, users[8];
    int32_t exit_code; /* as waitpid reports it */
};
_Static_assert(sizeof(struct process_pidfd_info) == 64, "the kernel's layout");

bool process_exit_status(int *status, int pidfd)
{
    const uint64_t exit = 1 << 3;                      /* PIDFD_INFO_EXIT */
    struct process_pidfd_info info = { .mask = exit }; /* 0xFF, 11: PIDFD_GET_INFO */

    if (ioctl(pidfd, _IOWR(0xFF, 11, struct process_pidfd_info), &info) != 0 || !(info.mask & exit))
        return false;
    *status = info.exit_code;
    return true;
}

int64_t process_start(pid_t pid)
{
    struct process_stat stat;

    process_stat_read(&stat, pid);
    return stat.start;
}

char process_state(pid_t pid)
{
    struct process_stat stat;

    process_stat_read(&stat, pid);
    return stat.state;
}

/* What is looked for: a process with env=id in its environment. */
struct process_mark {
    const char *env, *id;
    char *buf;         /* for an environment: ENVIRON_MAX + 1 bytes */
    bool lengths_told; /* the kernel says how long environments are; some sandboxes do not */
};

enum process_look {
    LOOK_IS,
    LOOK_IS_NOT,
    LOOK_AGAIN,      /* it could not be judged */
    LOOK_AGAIN_READY /* the same: it executes a program, and needs only a processor to go on */
};

/* Read the environment that a process was started with into buf. Returns its bytes; -1: the process
 * is another user's. 0 also when there is no such process, or it executes a program. */
static int64_t read_environment(char *buf, pid_t pid)
{
    char path[64];
    int64_t n = 0;
    ssize_t got;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES || errno == EPERM ? -1 : 0;
    while (n < ENVIRON_MAX && (got = read(fd, buf + n, (size_t)(ENVIRON_MAX - n))) > 0)
        n += got;
    close(fd);
    buf[n] = 0;
    return n;
}

static bool has_mark(const struct process_mark *m, int64_t size)
{
    size_t n_env = strlen(m->env), n_id = strlen(m->id);

    for (int64_t at = 0; at < size; at += (int64_t)strlen(m->buf + at) + 1) {
        const char *v = m->buf + at + n_env + 1;

        if (strncmp(m->buf + at, m->env, n_env) != 0 || m->buf[at + (int64_t)n_env] != '=')
            continue;
        if (strcmp(v, m->id) == 0 ||
            (n_id > 0 && m->id[n_id - 1] == '.' && strncmp(v, m->id, n_id) == 0))
            return true;
    }
    return false;
}

/* Look at a process. From the moment when it executes a program until the kernel has copied the new
 * environment, nothing can be read, and a read that has begun ends early; the kernel then tells no
 * length, or another one. */
static enum process_look look_at(const struct process_mark *m, pid_t pid)
{
    struct process_stat stat;
    int64_t n = read_environment(m->buf, pid);

    if (n < 0)
        return LOOK_IS_NOT;
    if (has_mark(m, n))
        return LOOK_IS;
    if (!m->lengths_told || !process_stat_read(&stat, pid) || !stat.has_program)
        return LOOK_IS_NOT;
    if (n == ENVIRON_MAX || n == stat.env_bytes)
        return LOOK_IS_NOT;
    return stat.env_bytes < 0 && stat.state == 'R' ? LOOK_AGAIN_READY : LOOK_AGAIN;
}

/* A sweep over all processes. */
struct process_sweep_state {
    struct process_mark mark;
    int sig;
    pid_t first; /* with the mark; 0: none */
    int found;
    pid_t again[AGAIN_MAX]; /* processes that could not be judged */
    int n_again;
    bool ready_only; /* the others of these are skipped */
};

static void sweep_one(struct process_sweep_state *s, pid_t pid)
{
    int fd = process_pidfd(pid); /* before the look: the pid may be reused at any time */
    enum process_look look = fd >= 0 ? look_at(&s->mark, pid) : LOOK_IS_NOT;

    if (look == LOOK_IS) {
        if (s->sig)
            process_signal(fd, s->sig);
        if (!s->first)
            s->first = pid;
        s->found++;
    } else if ((look == LOOK_AGAIN_READY || (look == LOOK_AGAIN && !s->ready_only)) &&
               s->n_again < AGAIN_MAX) {
        s->again[s->n_again++] = pid;
    }
    if (fd >= 0)
        close(fd);
}

/* Look again at those that could not be judged. One that stays so for AGAIN_S is skipped; one that
 * waits for a processor, which takes long where many processes run, for READY_S. */
static void sweep_again(struct process_sweep_state *s)
{
    const struct timespec pause = { .tv_nsec = AGAIN_PAUSE_NS };
    const double begin = clock_seconds();

    while (s->n_again > 0 && clock_seconds() < begin + READY_S) {
        int n = s->n_again;

        nanosleep(&pause, NULL);
        s->n_again = 0;
        s->ready_only = clock_seconds() >= begin + AGAIN_S;
        for (int i = 0; i < n; i++)
            sweep_one(s, s->again[i]);
    }
}

/* Send sig, if not 0, to each process with env=id; *first gets the pid of the first one. Returns
 * their number. */
static int sweep(const char *env, const char *id, int sig, pid_t *first)
{
    struct process_sweep_state s = { .mark = { .env = env, .id = id }, .sig = sig };
    struct process_stat self;
    DIR *d = opendir("/proc");
    struct dirent *e;

    s.mark.buf = malloc(ENVIRON_MAX + 1);
    s.mark.lengths_told = process_stat_self(&self) && self.env_bytes >= 0;
    while (d && s.mark.buf && (e = readdir(d))) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? (pid_t)strtol(e->d_name, NULL, 10) : 0;

        if (pid > 0 && pid != getpid())
            sweep_one(&s, pid);
    }
    sweep_again(&s);
    if (d)
        closedir(d);
    free(s.mark.buf);
    *first = s.first;
    return s.found;
}

int process_sweep(const char *env, const char *id, int sig)
{
    pid_t first;

    return sweep(env, id, sig, &first);
}

int process_end_all(const char *const *envs, const char *id, int sweeps)
{
    const struct timespec pause = { .tv_nsec = SWEEP_PAUSE_NS };
    int most = 0;

    for (int i = 0; i < sweeps; i++) {
        int n = 0;

        for (const char *const *env = envs; *env; env++)
            n += process_sweep(*env, id, SIGKILL);
        if (n == 0)
            break;
        most = n > most ? n : most;
        nanosleep(&pause, NULL);
    }
    return most;
}

pid_t process_find(const char *env, const char *id)
{
    pid_t first;

    sweep(env, id, 0, &first);
    return first;
}
