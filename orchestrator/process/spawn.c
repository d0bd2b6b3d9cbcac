/* orchestrator/process/spawn.c - see orchestrator/process/spawn.h. */
#include "orchestrator/process/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { WORDS_MAX = 4096 };

/* execve. A file without a format that the kernel knows is run as a shell script. */
static void execute(const char *path, char *const *argv, char *const *env)
{
    char *script[WORDS_MAX];
    int n = 0;

    execve(path, argv, env);
    if (errno != ENOEXEC)
        return;
    script[n++] = "/bin/sh";
    script[n++] = (char *)(uintptr_t)path;
    for (int i = 1; argv[i] && n < WORDS_MAX - 1; i++)
        script[n++] = argv[i];
    script[n] = NULL;
    execve(script[0], script, env);
}

/* Like execvp, but with the PATH of `env`. Returns only if nothing can be executed: see errno. */
static void search_and_execute(char *const *argv, const struct environment *env)
{
    char *const *list = environment_list(env);
    const char *path = environment_get(env, "PATH"), *next;
    bool denied = false;

    errno = ENOMEM;
    if (!list)
        return;
    if (strchr(argv[0], '/')) {
        execute(argv[0], argv, list);
        return;
    }
    errno = ENOENT;
    for (const char *p = path ? path : "/bin:/usr/bin"; p; p = next) {
        char file[PATH_MAX];
        int n = (int)strcspn(p, ":");

        next = p[n] ? p + n + 1 : NULL;
        if (snprintf(file, sizeof file, "%.*s%s%s", n, p, n ? "/" : "", argv[0]) < PATH_MAX)
            execute(file, argv, list);
        denied = denied || errno == EACCES;
        if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
            return;
    }
    if (denied)
        errno = EACCES;
}

static void redirect(int out)
{
    int null = open("/dev/null", O_RDONLY);

    dup2(null, 0);
    dup2(out, 1);
    dup2(out, 2);
    if (null > 2)
        close(null);
}

/* Set up the new process. */
static void become(const struct spawn *s, pid_t parent)
{
    sigset_t none;
    int e;

    if (s->dies_with_parent) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(SPAWN_NOT_EXECUTED); /* the parent died before prctl */
    }
    if (s->own_session) {
        setsid();
        /* no terminal can send it now; a job's stop_signal can be SIGHUP */
        signal(SIGHUP, SIG_DFL);
    }
    if (s->own_group)
        setpgid(0, 0);
    if (s->ignores_sigterm)
        signal(SIGTERM, SIG_IGN);
    if (s->out >= 0)
        redirect(s->out);
    signal(SIGXFSZ, SIG_DFL); /* ignored here (cli/report.h), but what another program expects */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, s->mask ? s->mask : &none, NULL);
    if (!s->dir || chdir(s->dir) == 0)
        search_and_execute(s->argv, s->env);
    e = errno;
    if (s->report < 0)
        dprintf(2, "%s: %s\n", s->argv[0], strerror(e));
    else if (write(s->report, &e, sizeof e) != sizeof e)
        _exit(SPAWN_NOT_EXECUTED - 1);
    _exit(SPAWN_NOT_EXECUTED);
}

pid_t spawn_start(const struct spawn *s)
{
    pid_t parent = getpid(), pid;
    sigset_t before;

    if (s->mask) /* so that they are blocked in the new process from its first moment */
        sigprocmask(SIG_BLOCK, s->mask, &before);
    pid = fork();
    if (pid == 0)
        become(s, parent);
    if (s->mask)
        sigprocmask(SIG_SETMASK, &before, NULL);
    return pid;
}
