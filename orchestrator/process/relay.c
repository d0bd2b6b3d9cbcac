/* orchestrator/process/relay.c - see orchestrator/process/relay.h. */
#include "orchestrator/process/relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/file.h"

enum { PORT_EVERY_BEATS = 5 };

struct relay {
    int rank;
    const char *shared;
    char local[PATH_MAX];
    int udp;  /* connected to tp-run, -1: none */
    int port; /* there */
    int beats;
    int64_t heard; /* the newest step whose loss was copied */
    struct relay_beat beat;
};

int relay_listen(int *port)
{
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) != 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *port = ntohs(a.sin_port);
    return fd;
}

bool relay_next(struct relay_beat *beat, int fd, const char *id)
{
    ssize_t n;

    while ((n = recv(fd, beat, sizeof *beat, 0)) >= 0)
        if (n == sizeof *beat && strncmp(beat->id, id, sizeof beat->id) == 0) {
            beat->node[sizeof beat->node - 1] = 0;
            return true;
        }
    return false;
}

static void port_path(char path[PATH_MAX], const char *dir)
{
    snprintf(path, PATH_MAX, "%.4000s/beats", dir);
}

tp_status relay_tell_port(const char *dir, int port, struct tp_err *err)
{
    char path[PATH_MAX], text[16];

    port_path(path, dir);
    return file_replace(path, text, (size_t)snprintf(text, sizeof text, "%d\n", port), err);
}

/* tp-run's port now, 0: not known. */
static int read_port(const char *dir)
{
    struct arena arena = { 0 };
    struct tp_err ignored;
    char path[PATH_MAX], *text;
    size_t n;
    long port = 0;

    port_path(path, dir);
    if (file_read_own(&text, &n, path, 16, &arena, &ignored) == TP_OK)
        port = strtol(text, NULL, 10);
    arena_free(&arena);
    return port > 0 && port < 65536 ? (int)port : 0;
}

/* To the host that srun was started on: Slurm tells its address. */
static void connect_home(struct relay *r)
{
    const char *host = getenv("SLURM_LAUNCH_NODE_IPADDR");
    struct sockaddr_in a = { .sin_family = AF_INET };
    int port = read_port(r->shared);

    if (port == 0 || port == r->port || !host || inet_pton(AF_INET, host, &a.sin_addr) != 1)
        return;
    if (r->udp < 0)
        r->udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    a.sin_port = htons((uint16_t)port);
    if (r->udp >= 0 && connect(r->udp, (struct sockaddr *)&a, sizeof a) == 0)
        r->port = port;
}

/* Every step's loss since the last copy, before the slot that says that they are there: the watcher
 * looks at rank 0's. */
static void copy_losses(struct relay *r, int to, const char *from,
                        const struct heartbeat_status *slot)
{
    struct heartbeat_loss e[HEARTBEAT_HISTORY];
    int n = r->rank == 0 ? heartbeat_losses(e, HEARTBEAT_HISTORY, from, slot, r->heard) : 0;

    for (int i = 0; i < n; i++) {
        off_t at = HEARTBEAT_BYTES + (off_t)(e[i].step % slot->history) * (off_t)sizeof e[i];

        if (pwrite(to, &e[i], sizeof e[i], at) == sizeof e[i])
            r->heard = e[i].step;
    }
}

/* The first send after one to a port that nobody listens on (a tp-run that died) does nothing but
 * report that: a second one goes out. */
static void send_beat(const struct relay *r)
{
    if (r->udp >= 0 && send(r->udp, &r->beat, sizeof r->beat, 0) < 0)
        (void)!send(r->udp, &r->beat, sizeof r->beat, 0);
}

/* A copy of the rank's slot, if it has one yet, and a sign of life. */
static void beat(struct relay *r)
{
    char from[PATH_MAX + 32], to[PATH_MAX];
    struct heartbeat_status slot;
    struct tp_err ignored;
    int fd;

    if (r->beats++ % PORT_EVERY_BEATS == 0 || r->beat.news != RELAY_BEATS)
        connect_home(r); /* the last one must reach a tp-run that has just taken over */
    send_beat(r);
    if (heartbeat_read(&slot, heartbeat_path(from, sizeof from, r->local, r->rank), r->rank,
                       &ignored))
        return;
    fd = open(heartbeat_path(to, sizeof to, r->shared, r->rank), O_WRONLY | O_CREAT | O_CLOEXEC,
              0600);
    if (fd < 0)
        return;
    copy_losses(r, fd, from, &slot);
    (void)!pwrite(fd, &slot, sizeof slot, 0); /* the next one makes good for it */
    close(fd);
}

/* No more beats come from here, and not because the node is lost. */
static void say_end(struct relay *r, int status)
{
    bool fine = WIFEXITED(status) &&
                (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == tp_exit_code(TP_E_STOPPED));

    r->beat.news = fine ? RELAY_ENDED : RELAY_FAILED;
}

static pid_t start(char **argv, const struct relay *r, const sigset_t *mask)
{
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    sigprocmask(SIG_SETMASK, mask, NULL);
    signal(SIGTERM, SIG_IGN); /* Slurm sends it to all processes: see follow() */
    setenv(HEARTBEAT_DIR_ENV, r->local, 1);
    execvp(argv[0], argv);
    dprintf(2, "tp-run relay: %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* Beat until the rank ends; its wait status. *asked: it was told to. SIGTERM is how Slurm says that
 * a step's time is over (preempted, requeued, at its time limit, cancelled), with a grace before
 * SIGKILL: that is when a rank should save and stop, and most programs just die of it. */
static int follow(struct relay *r, pid_t child, const sigset_t *signals, bool *asked)
{
    const struct timespec period = { .tv_nsec = RELAY_PERIOD_MS * 1000000L };
    char stop[PATH_MAX];
    int status;

    snprintf(stop, sizeof stop, "%.4000s/stop", r->shared);
    for (;;) {
        int got = sigtimedwait(signals, NULL, &period);

        if (got > 0 && got != SIGCHLD)
            *asked = kill(child, got == SIGTERM ? SIGUSR1 : got) == 0;
        if (waitpid(child, &status, WNOHANG) == child) {
            say_end(r, status);
            beat(r);
            return status;
        }
        if (file_exists(stop))
            *asked = kill(child, SIGKILL) == 0;
        if (got <= 0)
            beat(r);
    }
}

tp_status relay_run(struct relay_end *end, char **argv, const char *dir, struct tp_err *err)
{
    static const int handed_on[] = { SIGCHLD, SIGTERM, SIGINT, SIGUSR1 };
    const char *rank = getenv("SLURM_PROCID"), *id = getenv("TP_RUN_ID");
    const char *node = getenv("SLURMD_NODENAME");
    struct relay r = { .rank = rank ? (int)strtol(rank, NULL, 10) : 0, .shared = dir, .udp = -1 };
    char slot[PATH_MAX + 32];
    sigset_t signals, before;
    pid_t child;
    int status;
    tp_status st;

    snprintf(r.local, sizeof r.local, "%s/tp-relay-%.100s",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", id ? id : "job");
    if ((st = file_make_dirs(r.local, err)))
        return st;
    r.beat.rank = r.rank;
    snprintf(r.beat.id, sizeof r.beat.id, "%s", id ? id : "");
    snprintf(r.beat.node, sizeof r.beat.node, "%s", node ? node : "");
    sigemptyset(&signals);
    for (size_t i = 0; i < sizeof handed_on / sizeof handed_on[0]; i++)
        sigaddset(&signals, handed_on[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    child = start(argv, &r, &before);
    if (child < 0)
        return tp_fail_errno(err, "cannot fork");
    beat(&r);
    *end = (struct relay_end){ .rank = r.rank };
    status = follow(&r, child, &signals, &end->asked);
    unlink(heartbeat_path(slot, sizeof slot, r.local, r.rank));
    rmdir(r.local); /* the last rank's relay on the node succeeds */
    end->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    end->exit_code = end->signal ? 128 + end->signal : WEXITSTATUS(status);
    return TP_OK;
}
