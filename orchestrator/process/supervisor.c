/* orchestrator/process/supervisor.c - see orchestrator/process/supervisor.h. */
#include "orchestrator/process/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/file.h"
#include "orchestrator/process/process.h"

static const int HANDED_ON[] = { SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP };
enum { N_HANDED_ON = sizeof HANDED_ON / sizeof HANDED_ON[0] };

static void child_exec(char **argv, const char *id, const sigset_t *mask, int report, pid_t keeper)
{
    int e;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != keeper)
        _exit(127); /* the keeper died before the line above */
    setpgid(0, 0);
    sigprocmask(SIG_SETMASK, mask, NULL);
    unsetenv(PROCESS_SUPERVISOR_ENV);
    setenv(PROCESS_ID_ENV, id, 1);
    execvp(argv[0], argv);
    e = errno;
    if (write(report, &e, sizeof e) != sizeof e)
        _exit(126);
    _exit(127);
}

/* Start the command; *failed gets execvp's errno, 0 when it runs. */
static pid_t start(char **argv, const char *id, const sigset_t *mask, int *failed)
{
    pid_t keeper = getpid(), child;
    int report[2];

    *failed = 0;
    if (pipe2(report, O_CLOEXEC) != 0)
        return -1;
    child = fork();
    if (child == 0)
        child_exec(argv, id, mask, report[1], keeper);
    close(report[1]);
    if (child > 0 && read(report[0], failed, sizeof *failed) != sizeof *failed)
        *failed = 0;
    close(report[0]);
    return child;
}

/* Nothing of the attempt may go on: kill, reap, look again. A process in an uninterruptible wait
 * stays until the kernel lets it go; after ten seconds that is told by the caller's sweep. */
static void end_all(const char *id)
{
    for (int i = 0; i < 1000; i++) {
        const struct timespec wait = { .tv_nsec = 10 * 1000 * 1000 };

        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        if (process_sweep(PROCESS_ID_ENV, id, SIGKILL) == 0)
            return;
        nanosleep(&wait, NULL);
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

/* Hand signals on until the command ends. */
static struct supervisor_outcome wait_for(pid_t child, const sigset_t *handled)
{
    struct supervisor_outcome o = { .started = 1 };
    int status;

    for (;;) {
        siginfo_t info;
        pid_t gone;

        while ((gone = waitpid(-1, &status, WNOHANG)) > 0)
            if (gone == child) {
                o.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
                o.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
                return o;
            }
        if (sigwaitinfo(handled, &info) > 0 && info.si_signo != SIGCHLD)
            kill(child, info.si_signo);
    }
}

tp_status supervisor_run(char **argv, const char *id, const char *exit_path, struct tp_err *err)
{
    struct supervisor_outcome o = { 0 };
    sigset_t handled, before;
    pid_t child;
    int failed;

    sigemptyset(&handled);
    sigaddset(&handled, SIGCHLD);
    for (int i = 0; i < N_HANDED_ON; i++)
        sigaddset(&handled, HANDED_ON[i]);
    sigprocmask(SIG_BLOCK, &handled, &before);
    for (int i = 0; i < N_HANDED_ON; i++)
        sigdelset(&before, HANDED_ON[i]);
    sigdelset(&before, SIGCHLD);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    child = start(argv, id, &before, &failed);
    if (child < 0)
        return tp_fail_errno(err, "cannot fork");
    if (failed)
        o.exit_code = failed;
    else
        o = wait_for(child, &handled);
    end_all(id);
    return write_outcome(&o, exit_path, err);
}

tp_status supervisor_read(struct supervisor_outcome *out, const char *exit_path, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct supervisor_outcome o = { 0 };
    json_t *json = NULL;
    char *text;
    size_t size;
    tp_status st = file_read_own(&text, &size, exit_path, 4096, &arena, err);

    if (st == TP_OK) {
        json = json_loadb(text, size, 0, NULL);
        if (json_unpack(json, "{s:i,s:i,s:b}", "exit_code", &o.exit_code, "signal", &o.signal,
                        "started", &o.started) != 0)
            st = tp_fail(err, TP_E_CORRUPT, "%s: not how a command ended", exit_path);
        else
            *out = o;
    }
    json_decref(json);
    arena_free(&arena);
    return st;
}
