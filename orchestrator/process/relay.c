/* orchestrator/process/relay.c - see orchestrator/process/relay.h. */
#include "orchestrator/process/relay.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/file_tree.h"
#include "core/heartbeat.h"
#include "core/private_dir.h"
#include "orchestrator/process/relay_message.h"
#include "orchestrator/process/spawn.h"

static const char STOP[] = "stop", PREFIX[] = "tp-relay-";

enum {
    PERIOD_MS = 200,
    PORT_EVERY = 5,    /* messages between two readings of the port */
    LOCAL_TRIES = 1000 /* relays that start at the same time can remove a folder a few times */
};

struct relay {
    const struct relay_setup *setup;
    char local[PATH_MAX]; /* where the rank's heartbeat file is */
    int local_dir;        /* the same, open and locked */
    int shared_dir;       /* setup->dir, open */
    struct relay_sender sender;
    struct relay_message message;
    int sent;
    int64_t copied; /* the newest step whose loss was copied */
};

/* Copy the losses of the steps since the last copy, before the status that announces them. tp-run
 * reads only the losses of rank 0. */
static void copy_losses(struct relay *r, int to, int from, const struct heartbeat_status *status)
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
    char name[HEARTBEAT_NAME_MAX];
    struct heartbeat_status status;
    struct tp_err ignored;
    int rank = r->setup->rank, from, to = -1;

    if (heartbeat_find(&from, r->local_dir, rank, &ignored))
        return;
    if (heartbeat_read(&status, from, rank, &ignored) == TP_OK)
        to = openat(r->shared_dir, heartbeat_name(name, rank),
                    O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (to >= 0) {
        copy_losses(r, to, from, &status);
        (void)!pwrite(to, &status, sizeof status, 0); /* if it fails, the next copy replaces it */
        close(to);
    }
    close(from);
}

/* Send a message and copy the heartbeat. Before the last message the port is always read again,
 * because it must reach a tp-run that has just taken over. */
static void report(struct relay *r)
{
    if (r->sent++ % PORT_EVERY == 0 || r->message.news != RELAY_ALIVE)
        relay_connect(&r->sender, r->shared_dir, r->setup->host);
    relay_send(&r->sender, &r->message);
    copy_heartbeat(r);
}

/* Send the last message. It tells tp-run that no more messages follow, although the node is
 * fine. */
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

static bool is_told_to_stop(const struct relay *r)
{
    return faccessat(r->shared_dir, STOP, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Report until the rank ends. Returns its wait status; *asked: its end was requested. A
 * scheduler sends SIGTERM, some time before SIGKILL, when the job must end (preempted, requeued, at
 * its time limit, cancelled). The rank should then save and stop, and its stop_signal asks for
 * that. tp-run asks for it by SIGUSR1, which every launcher forwards. */
static int follow(struct relay *r, pid_t child, const sigset_t *signals, bool *asked)
{
    const struct timespec period = { .tv_nsec = PERIOD_MS * 1000000L };
    int status;

    for (;;) {
        int got = sigtimedwait(signals, NULL, &period);

        if (got > 0 && got != SIGCHLD)
            *asked =
                kill(child, got == SIGTERM || got == SIGUSR1 ? r->setup->stop_signal : got) == 0;
        if (waitpid(child, &status, WNOHANG) == child) {
            report_end(r, status);
            return status;
        }
        if (is_told_to_stop(r))
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

/* Remove the folders of relays that were killed: no process holds their locks. */
static void remove_dead(const char *parent)
{
    DIR *d = opendir(parent);
    const struct dirent *e;
    struct tp_err ignored;
    struct stat sb;

    while (d && (e = readdir(d))) {
        int fd;

        if (strncmp(e->d_name, PREFIX, sizeof PREFIX - 1) != 0)
            continue;
        fd = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &sb) == 0 && sb.st_uid == geteuid() &&
            flock(fd, LOCK_EX | LOCK_NB) == 0)
            file_tree_remove_at(dirfd(d), e->d_name, geteuid(), &ignored);
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
}

/* Make and lock a folder for the rank's heartbeat file. TP_E_NOTFOUND: another relay, which took it
 * for a dead one's, has removed it before it was locked. */
static tp_status try_local(struct relay *r, const char *parent, struct tp_err *err)
{
    struct stat sb;
    tp_status st;

    TP_TRY(private_dir_name(r->local, parent, PREFIX, err));
    TP_TRY(private_dir_make(&r->local_dir, r->local, err));
    if (flock(r->local_dir, LOCK_EX) != 0 || fstat(r->local_dir, &sb) != 0)
        st = tp_fail_errno(err, "%s: cannot lock", r->local);
    else if (sb.st_nlink == 0)
        st = tp_fail(err, TP_E_NOTFOUND, "%s: was removed while it was made", r->local);
    if (st)
        close(r->local_dir);
done:
    return st;
}

static tp_status make_local(struct relay *r, struct tp_err *err)
{
    const char *parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    tp_status st = TP_E_NOTFOUND;

    remove_dead(parent);
    for (int i = 0; i < LOCAL_TRIES && st == TP_E_NOTFOUND; i++)
        st = try_local(r, parent, err);
    return st;
}

/* Start the rank, and follow it to its end. */
static tp_status run_rank(struct relay *r, struct relay_end *end, struct tp_err *err)
{
    sigset_t signals, before;
    pid_t child;
    int status;

    block_signals(&signals, &before);
    child = start(r, &before);
    if (child < 0)
        return tp_fail_errno(err, "cannot fork");
    report(r);
    *end = (struct relay_end){ 0 };
    status = follow(r, child, &signals, &end->asked);
    end->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    end->exit_code = end->signal ? 128 + end->signal : WEXITSTATUS(status);
    return TP_OK;
}

tp_status relay_run(struct relay_end *end, const struct relay_setup *setup, struct tp_err *err)
{
    struct relay r = { .setup = setup,
                       .sender.fd = -1,
                       .message.rank = setup->rank,
                       .local_dir = -1,
                       .shared_dir = -1 };
    struct tp_err ignored;
    tp_status st;

    snprintf(r.message.id, sizeof r.message.id, "%s", setup->id);
    snprintf(r.message.node, sizeof r.message.node, "%s", setup->node);
    TP_TRY(private_dir_open(&r.shared_dir, setup->dir, err));
    TP_TRY(make_local(&r, err));
    st = run_rank(&r, end, err);
    private_dir_remove(r.local_dir, r.local, &ignored);
done:
    if (r.shared_dir >= 0)
        close(r.shared_dir);
    return st;
}

void relay_stop_all(int dir)
{
    int fd = openat(dir, STOP, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd >= 0)
        close(fd);
}
