/* orchestrator/process/process.c - see orchestrator/process/process.h. */
#include "orchestrator/process/process.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/process_stat.h"

enum { ENVIRON_MAX = 1 << 20 };

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

/* Whether pid was started with env=id in its environment. buf has ENVIRON_MAX + 1 bytes. */
static bool has_env(pid_t pid, const char *env, const char *id, char *buf)
{
    char path[64];
    size_t n_env = strlen(env), n_id = strlen(id);
    size_t n = 0;
    ssize_t got;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    while (n < ENVIRON_MAX && (got = read(fd, buf + n, ENVIRON_MAX - n)) > 0)
        n += (size_t)got;
    close(fd);
    buf[n] = 0;
    for (size_t at = 0; at < n; at += strlen(buf + at) + 1) {
        const char *v = buf + at + n_env + 1;

        if (strncmp(buf + at, env, n_env) != 0 || buf[at + n_env] != '=')
            continue;
        if (strcmp(v, id) == 0 || (n_id > 0 && id[n_id - 1] == '.' && strncmp(v, id, n_id) == 0))
            return true;
    }
    return false;
}

/* Send sig, if not 0, to each process with env=id; *first gets the pid of the first one. Returns
 * their number. */
static int signal_all(const char *env, const char *id, int sig, pid_t *first)
{
    DIR *d = opendir("/proc");
    char *buf = malloc(ENVIRON_MAX + 1);
    struct dirent *e;
    int count = 0;

    while (d && buf && (e = readdir(d))) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? (pid_t)strtol(e->d_name, NULL, 10) : 0;
        int fd;

        if (pid <= 0 || pid == getpid() || !has_env(pid, env, id, buf))
            continue;
        fd = process_pidfd(pid);
        /* read again, because the pid may have been reused before the pidfd was opened */
        if (fd >= 0 && has_env(pid, env, id, buf) && process_state(pid) != 'Z') {
            if (sig)
                process_signal(fd, sig);
            if (first && !*first)
                *first = pid;
            count++;
        }
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
    free(buf);
    return count;
}

int process_sweep(const char *env, const char *id, int sig)
{
    return signal_all(env, id, sig, NULL);
}

pid_t process_find(const char *env, const char *id)
{
    pid_t first = 0;

    signal_all(env, id, 0, &first);
    return first;
}
