/* orchestrator/process/supervisor.c - see orchestrator/process/supervisor.h. */
#include "orchestrator/process/supervisor.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/clock.h"
#include "core/file.h"
#include "orchestrator/process/process.h"
#include "orchestrator/process/spawn.h"

static const int FORWARDED[] = { SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP };
enum { N_FORWARDED = sizeof FORWARDED / sizeof FORWARDED[0] };
enum { SWEEP_MS = 10 };
static const double END_S = 10; /* in which all processes end */

void supervisor_signals(sigset_t *out)
{
    sigemptyset(out);
    for (int i = 0; i < N_FORWARDED; i++)
        sigaddset(out, FORWARDED[i]);
}

/* Start the command with the signals in `mask` blocked. *failed: the errno if it cannot be
 * executed, else 0. Returns its pid, or -1: see errno. */
static pid_t start(const struct supervisor_setup *setup, const sigset_t *mask, int *failed)
{
    struct environment env;
    struct spawn s = { .argv = setup->argv,
                       .env = &env,
                       .out = -1,
                       .mask = mask,
                       .own_group = true,
                       .dies_with_parent = true };
    int report[2];
    pid_t child;

    *failed = 0;
    if (pipe2(report, O_CLOEXEC) != 0)
        return -1;
    environment_copy(&env, environment_list(setup->env));
    environment_unset(&env, PROCESS_SUPERVISOR_ENV);
    environment_set(&env, PROCESS_ID_ENV, setup->id);
    s.report = report[1];
    child = spawn_start(&s);
    environment_free(&env);
    close(report[1]);
    if (child > 0 && read(report[0], failed, sizeof *failed) != sizeof *failed)
        *failed = 0;
    close(report[0]);
    return child;
}

/* Kill and reap until no process of the attempt remains. A process in an uninterruptible wait stays
 * until the kernel ends the wait; after ten seconds tp-run takes over and reports it. */
static void end_all(const char *id)
{
    const struct timespec pause = { .tv_nsec = SWEEP_MS * 1000 * 1000 };
    const double until = clock_seconds() + END_S;

    while (process_sweep(PROCESS_ID_ENV, id, SIGKILL) > 0 && clock_seconds() < until) {
        nanosleep(&pause, NULL);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}

static tp_status write_outcome(const struct supervisor_outcome *o, const char *path,
                               struct tp_err *err)
{
    json_t *json = json_pack("{s:i,s:i,s:b}", "exit_code", o->exit_code, "signal", o->signal,
                             "started", o->started);
    char *text = json ? json_dumps(json, 0) : NULL;
    tp_status st = text ? file_replace(path, text, strlen(text), err)
                        : tp_fail(err, TP_E_NOMEM, "no memory for %s", path);

    free(text);
    json_decref(json);
    return st;
}

/* Forward signals until the command ends. */
static struct supervisor_outcome wait_for(pid_t child, const sigset_t *handled)
{
    struct supervisor_outcome o = { .started = 1 };
    int status;

    for (;;) {
        siginfo_t info;
        pid_t ended;

        while ((ended = waitpid(-1, &status, WNOHANG)) > 0)
            if (ended == child) {
                o.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
                o.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
                return o;
            }
        if (sigwaitinfo(handled, &info) > 0 && info.si_signo != SIGCHLD)
            kill(child, info.si_signo);
    }
}

tp_status supervisor_run(const struct supervisor_setup *setup, struct tp_err *err)
{
    struct supervisor_outcome o = { 0 };
    sigset_t handled, before;
    pid_t child;
    int failed;

    supervisor_signals(&handled);
    sigaddset(&handled, SIGCHLD);
    sigprocmask(SIG_BLOCK, &handled, &before);
    for (int i = 0; i < N_FORWARDED; i++)
        sigdelset(&before, FORWARDED[i]);
    sigdelset(&before, SIGCHLD);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    child = start(setup, &before, &failed);
    if (child < 0)
        return tp_fail_errno(err, "cannot fork");
    if (failed)
        o.exit_code = failed;
    else
        o = wait_for(child, &handled);
    end_all(setup->id);
    return write_outcome(&o, setup->exit_path, err);
}

/* ---- tp-run's side ---- */

tp_status supervisor_watch(struct supervisor *s, pid_t pid, struct tp_err *err)
{
    *s = (struct supervisor){ .pid = pid, .pidfd = process_pidfd(pid) };
    if (s->pidfd < 0)
        return tp_fail_errno(err, "cannot watch the supervisor (pid %d)", (int)pid);
    return TP_OK;
}

void supervisor_forget(struct supervisor *s)
{
    if (s->pidfd >= 0)
        close(s->pidfd);
    *s = (struct supervisor){ .pidfd = -1 };
}

void supervisor_ask_to_stop(const struct supervisor *s, int sig)
{
    if (s->pid > 0)
        kill(s->pid, sig);
}

/* Whether a command can have ended so. */
static bool is_outcome(json_int_t exit_code, json_int_t sig)
{
    enum { ERRNO_MAX = 4095 };

    return sig == 0 ? exit_code >= 0 && exit_code <= ERRNO_MAX
                    : sig > 0 && sig < NSIG && exit_code == -1;
}

tp_status supervisor_read(struct supervisor_outcome *out, const char *exit_path, struct tp_err *err)
{
    struct arena arena = { 0 };
    json_int_t exit_code = 0, sig = 0;
    int started = 0;
    json_t *json = NULL;
    char *text;
    size_t size;
    tp_status st = file_read_own(&text, &size, exit_path, 4096, &arena, err);

    if (st == TP_OK) {
        json = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
        if (json_unpack(json, "{s:I,s:I,s:b}", "exit_code", &exit_code, "signal", &sig, "started",
                        &started) != 0 ||
            !is_outcome(exit_code, sig))
            st = tp_fail(err, TP_E_CORRUPT, "%s: does not say how a command ended", exit_path);
        else
            *out = (struct supervisor_outcome){ (int)exit_code, (int)sig, started };
    }
    json_decref(json);
    arena_free(&arena);
    return st;
}
