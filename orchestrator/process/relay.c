/* orchestrator/process/relay.c - see orchestrator/process/relay.h. */
#include "orchestrator/process/relay.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/file.h"
#include "core/heartbeat.h"
#include "orchestrator/process/relay_message.h"
#include "orchestrator/process/spawn.h"

enum { PERIOD_MS = 200, PORT_EVERY = 5 }; /* messages between two readings of the port */

struct relay {
    const struct relay_setup *setup;
    char local[PATH_MAX]; /* where the rank's heartbeat file is */
    struct relay_sender sender;
    struct relay_message message;
    int sent;
    int64_t copied; /* the newest step whose loss was copied */
};

/* Copy the losses of the steps since the last copy, before the status that announces them. tp-run
 * reads only the losses of rank 0. */
static void copy_losses(struct relay *r, int to, const char *from,
                        const struct heartbeat_status *status)
{
    struct heartbeat_loss e[HEARTBEAT_HISTORY];
    int n =
        r->setup->rank == 0 ? heartbeat_losses(e, HEARTBEAT_HISTORY, from, status, r->copied) : 0;

    for (int i = 0; i < n; i++) {
        off_t at = HEARTBEAT_BYTES + (off_t)(e[i].step % status->history) * (off_t)sizeof e[i];

        if (pwrite(to, &e[i], sizeof e[i], at) == sizeof e[i])
            r->copied = e[i].step;
    }
}

/* Copy the rank's heartbeat file, if it exists already. */
static void copy_heartbeat(struct relay *r)
{
    char from[PATH_MAX + 32], to[PATH_MAX];
    struct heartbeat_status status;
    struct tp_err ignored;
    int fd;

    heartbeat_path(from, sizeof from, r->local, r->setup->rank);
    if (heartbeat_read(&status, from, r->setup->rank, &ignored))
        return;
    fd = open(heartbeat_path(to, sizeof to, r->setup->dir, r->setup->rank),
              O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    copy_losses(r, fd, from, &status);
    (void)!pwrite(fd, &status, sizeof status, 0); /* if it fails, the next copy replaces it */
    close(fd);
}

/* Send a message and copy the heartbeat. Before the last message the port is always read again,
 * because it must reach a tp-run that has just taken over. */
static void report(struct relay *r)
{
    if (r->sent++ % PORT_EVERY == 0 || r->message.news != RELAY_ALIVE)
        relay_connect(&r->sender, r->setup->dir, r->setup->host);
    relay_send(&r->sender, &r->message);
    copy_heartbeat(r);
}

/* Send the last message. It tells tp-run that no more messages follow, although the node is fine.
 */
static void report_end(struct relay *r, int status)
{
    bool planned = WIFEXITED(status) &&
                   (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == tp_exit_code(TP_E_STOPPED));

    r->message.news = planned ? RELAY_ENDED : RELAY_FAILED;
    report(r);
}

/* Start the rank. It ignores SIGTERM, because schedulers send SIGTERM to every process: see follow.
 * But if SIGTERM is what asks it to stop, a program that does not handle it ends at once. */
static pid_t start(const struct relay *r, const sigset_t *mask)
{
    struct environment env;
    struct spawn s = { .argv = r->setup->argv,
                       .env = &env,
                       .out = -1,
                       .report = -1,
                       .mask = mask,
                       .dies_with_parent = true,
                       .ignores_sigterm = r->setup->stop_signal != SIGTERM };
    pid_t pid;

    environment_copy(&env, environment_list(r->setup->env));
    environment_set(&env, HEARTBEAT_DIR_ENV, r->local);
    pid = spawn_start(&s);
    environment_free(&env);
    return pid;
}

static void stop_path(char path[PATH_MAX], const char *dir)
{
    snprintf(path, PATH_MAX, "%.4000s/stop", dir);
}

/* Report until the rank ends. Returns its wait status; *asked: its end was requested. A
 * scheduler sends SIGTERM, some time before SIGKILL, when the job must end (preempted, requeued, at
 * its time limit, cancelled). The rank should then save and stop, and its stop_signal asks for
 * that. tp-run asks for it by SIGUSR1, which every launcher forwards. */
static int follow(struct relay *r, pid_t child, const sigset_t *signals, bool *asked)
{
    const struct timespec period = { .tv_nsec = PERIOD_MS * 1000000L };
    char stop[PATH_MAX];
    int status;

    stop_path(stop, r->setup->dir);
    for (;;) {
        int got = sigtimedwait(signals, NULL, &period);

        if (got > 0 && got != SIGCHLD)
            *asked =
                kill(child, got == SIGTERM || got == SIGUSR1 ? r->setup->stop_signal : got) == 0;
        if (waitpid(child, &status, WNOHANG) == child) {
            report_end(r, status);
            return status;
        }
        if (file_exists(stop))
            *asked = kill(child, SIGKILL) == 0;
        if (got <= 0)
            report(r);
    }
}

static void block_signals(sigset_t *signals, sigset_t *before)
{
    static const int handled[] = { SIGCHLD, SIGTERM, SIGINT, SIGUSR1 };

    sigemptyset(signals);
    for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++)
        sigaddset(signals, handled[i]);
    sigprocmask(SIG_BLOCK, signals, before);
}

tp_status relay_run(struct relay_end *end, const struct relay_setup *setup, struct tp_err *err)
{
    struct relay r = { .setup = setup, .sender.fd = -1, .message.rank = setup->rank };
    char path[PATH_MAX + 32];
    sigset_t signals, before;
    pid_t child;
    int status;
    tp_status st;

    snprintf(r.local, sizeof r.local, "%s/tp-relay-%.100s",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", setup->id);
    if ((st = file_make_dirs(r.local, err)))
        return st;
    snprintf(r.message.id, sizeof r.message.id, "%s", setup->id);
    snprintf(r.message.node, sizeof r.message.node, "%s", setup->node);
    block_signals(&signals, &before);
    child = start(&r, &before);
    if (child < 0)
        return tp_fail_errno(err, "cannot fork");
    report(&r);
    *end = (struct relay_end){ 0 };
    status = follow(&r, child, &signals, &end->asked);
    unlink(heartbeat_path(path, sizeof path, r.local, setup->rank));
    rmdir(r.local); /* succeeds for the last rank of the node */
    end->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    end->exit_code = end->signal ? 128 + end->signal : WEXITSTATUS(status);
    return TP_OK;
}

void relay_stop_all(const char *dir)
{
    char path[PATH_MAX];
    struct tp_err ignored;

    stop_path(path, dir);
    if (file_is_dir(dir) && !file_exists(path))
        file_write_new(path, "", 0, &ignored);
}
