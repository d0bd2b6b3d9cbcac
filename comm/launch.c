/* comm/launch.c - see comm/launch.h. */
#include "comm/launch.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/host/shm_job.h"
#include "core/stop.h"

enum {
    TICK_MS = 20,        /* how often ranks are checked after one has failed */
    GRACE_MS = 1200,     /* time for a rank to end after another has failed alone */
    AGREED_MS = 60000,   /* the same after a failure that all have agreed on */
    BLOCKED_MS = 60,     /* the same for a rank that sleeps because it waits for others */
    SECOND_INT_MS = 200, /* two interrupts within this time count as one */
};

struct launch_job {
    struct shm_job *job;
    pid_t pids[SHM_RANKS_MAX]; /* 0: not started, or ended and reaped */
    int n_alive;
    int first_code;    /* exit code of the first rank that failed, else 0 */
    bool agreed;       /* all ranks have agreed on that failure */
    bool stopped;      /* some rank ended with 75 */
    bool killing;      /* SIGKILL was sent to all */
    int64_t failed_at; /* when the first rank failed, ms; 0: none has */
    int64_t int_at;    /* when SIGINT first came, ms; 0: not yet */
    tp_status status;
    struct tp_err *err;
};

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

static void kill_ranks(const struct launch_job *l, int signal_number)
{
    for (int r = 0; r < l->job->n_ranks; r++)
        if (l->pids[r])
            kill(l->pids[r], signal_number);
}

static void end_all(struct launch_job *l)
{
    l->killing = true;
    kill_ranks(l, SIGKILL);
}

static void fail(struct launch_job *l, const char *text)
{
    if (!l->status)
        l->status = tp_fail(l->err, TP_E_COMM, "%s", text);
}

/* After a rank has failed: kill ranks that wait for others soon, and the rest after a grace. The
 * grace is long if all have agreed on the failure, because they may be reporting it and removing
 * unfinished files. */
static void end_leftover(struct launch_job *l)
{
    int64_t since = now_ms() - l->failed_at, grace = l->agreed ? AGREED_MS : GRACE_MS;

    for (int r = 0; r < l->job->n_ranks; r++)
        if (l->pids[r] &&
            (since >= grace || (since >= BLOCKED_MS && shm_job_is_blocked(l->job, r))))
            kill(l->pids[r], SIGKILL);
}

static void rank_killed(struct launch_job *l, int rank, int signal_number)
{
    char text[256];
    const char *name = sigabbrev_np(signal_number);

    if (l->killing || l->failed_at)
        return;
    snprintf(text, sizeof text, "rank %d was killed by signal %d (%s%s)%s", rank, signal_number,
             name ? "SIG" : "", name ? name : "unknown",
             signal_number == SIGKILL
                 ? "; unless a user sent it, the system was out of memory (see dmesg)"
                 : "");
    fail(l, text);
    end_all(l);
}

static void rank_exited(struct launch_job *l, int rank, int code)
{
    char text[128];

    if (code == tp_exit_code(TP_E_STOPPED)) {
        l->stopped = true;
    } else if (code && !l->failed_at) {
        l->first_code = code;
        l->failed_at = now_ms();
        l->agreed = l->job->ranks[rank].state == SHM_ENDED;
    } else if (!code && l->n_alive && l->job->ranks[rank].state == SHM_IN_WORLD && !l->failed_at) {
        snprintf(text, sizeof text,
                 "rank %d ended without leaving the job, which has %d rank%s left", rank,
                 l->n_alive, l->n_alive == 1 ? "" : "s");
        fail(l, text);
        end_all(l);
    }
}

static void reap(struct launch_job *l)
{
    int how;

    for (int r = 0; r < l->job->n_ranks; r++) {
        if (!l->pids[r] || waitpid(l->pids[r], &how, WNOHANG) != l->pids[r])
            continue;
        l->pids[r] = 0;
        l->n_alive--;
        if (WIFSIGNALED(how))
            rank_killed(l, r, WTERMSIG(how));
        else
            rank_exited(l, r, WEXITSTATUS(how));
    }
}

/* The first interrupt, and every other signal, asks the ranks to save; a second one ends them. */
static void pass_on(struct launch_job *l, int signal_number)
{
    int64_t now = now_ms();

    if (signal_number == SIGINT && l->int_at && now - l->int_at >= SECOND_INT_MS) {
        fail(l, "interrupted twice: the ranks were ended without saving");
        end_all(l);
        return;
    }
    if (signal_number == SIGINT && !l->int_at)
        l->int_at = now;
    kill_ranks(l, SIGUSR1);
}

static void watch(struct launch_job *l, const sigset_t *signals)
{
    const struct timespec tick = { .tv_nsec = TICK_MS * 1000000L };

    while (l->n_alive) {
        /* While no rank has failed, ranks need no check between signals. */
        int got = sigtimedwait(signals, NULL, l->failed_at ? &tick : NULL);

        if (got > 0 && got != SIGCHLD)
            pass_on(l, got);
        reap(l);
        if (l->failed_at)
            end_leftover(l);
    }
}

/* In the child: die with the launcher, and let it handle the signals. The launcher may have sent
 * SIGUSR1 already, so it stays blocked throughout: unblocked for a moment, it would kill the
 * rank. */
static void become_rank(struct shm_job *job, int rank, pid_t launcher, const sigset_t *mask)
{
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    sigset_t blocked = *mask;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) /* the launcher died before prctl took effect */
        _exit(tp_exit_code(TP_E_COMM));
    /* Ctrl-C reaches every process of the terminal, but only the launcher acts on it. */
    sigaction(SIGINT, &ignore, NULL);
    sigaction(SIGTERM, &ignore, NULL);
    sigaction(SIGHUP, &ignore, NULL); /* likewise when the terminal closes */
    stop_listen();
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &blocked, NULL);
    job->ranks[rank].pid = getpid();
}

static tp_status fork_ranks(struct launch_job *l, struct comm_launched *me, const sigset_t *mask,
                            struct tp_err *err)
{
    pid_t launcher = getpid();

    fflush(NULL); /* otherwise each rank would write the buffered output again */
    for (int r = 0; r < l->job->n_ranks; r++) {
        l->pids[r] = fork();
        if (l->pids[r] < 0) {
            l->pids[r] = 0;
            return tp_fail_errno(err, "cannot start rank %d of %d: fork", r, l->job->n_ranks);
        }
        if (l->pids[r] == 0) {
            become_rank(l->job, r, launcher, mask);
            *me = (struct comm_launched){ r, l->job };
            return TP_OK;
        }
        l->n_alive++;
    }
    return TP_OK;
}

tp_status launch_ranks(int n_ranks, struct comm_launched *me, int *exit_code, struct tp_err *err)
{
    static const int passed_on[] = { SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGHUP };
    struct launch_job l = { .err = err };
    struct sigaction plain = { .sa_handler = SIG_DFL }, old_chld;
    sigset_t signals, old_mask;
    tp_status st;

    *me = (struct comm_launched){ .rank = -1 };
    if ((st = shm_job_make(&l.job, n_ranks, err)))
        return st;
    sigemptyset(&signals);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        if (passed_on[i] != SIGHUP || !stop_is_ignored(SIGHUP))
            sigaddset(&signals, passed_on[i]);
    pthread_sigmask(SIG_BLOCK, &signals, &old_mask);
    sigaction(SIGCHLD, &plain, &old_chld); /* if it is ignored, children cannot be reaped */

    st = fork_ranks(&l, me, &old_mask, err);
    if (me->rank >= 0)
        return st;
    if (st) {
        l.status = st;
        end_all(&l);
    }
    watch(&l, &signals);
    *exit_code = l.first_code ? l.first_code : l.stopped ? tp_exit_code(TP_E_STOPPED) : 0;

    /* The signals stay blocked: one that comes now must not kill the launcher, because then its
     * exit code would not say that the job has ended, or was saved. */
    sigaction(SIGCHLD, &old_chld, NULL);
    shm_job_unmap(l.job);
    return l.status;
}
