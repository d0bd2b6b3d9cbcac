/* orchestrator/process/child.c - see orchestrator/process/child.h. */
#include "orchestrator/process/child.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUTPUT_MAX = 1 << 20, PIECE = 4096 };

/* SLURM_CONF and SLURM_CLUSTERS say where Slurm is; the rest is about the job around us. */
void child_forget_job(void)
{
    for (int i = 0; environ[i];) {
        char name[128];
        int n = (int)strcspn(environ[i], "=");

        snprintf(name, sizeof name, "%.*s", n, environ[i]);
        if (strncmp(name, "SLURM_", 6) == 0 && strcmp(name, "SLURM_CONF") != 0 &&
            strcmp(name, "SLURM_CLUSTERS") != 0 && unsetenv(name) == 0)
            continue; /* the next one is here now */
        i++;
    }
}

static void run(char *const *argv, const char *dir, int out, bool own_session)
{
    sigset_t none;
    int null = open("/dev/null", O_RDONLY);

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    child_forget_job();
    if (own_session)
        setsid();
    dup2(null, 0);
    dup2(out, 1);
    dup2(out, 2);
    if (chdir(dir) == 0)
        execvp(argv[0], argv);
    dprintf(2, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

tp_status child_start(struct child *c, char *const *argv, const char *dir, const char *log,
                      struct tp_err *err)
{
    int fds[2] = { -1, -1 };

    free(c->text);
    *c = (struct child){ .fd = -1 };
    if (log)
        fds[1] = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    else if (pipe2(fds, O_CLOEXEC) != 0 || fcntl(fds[0], F_SETFL, O_NONBLOCK) != 0)
        fds[1] = -1;
    if (fds[1] >= 0)
        c->pid = fork();
    if (fds[1] >= 0 && c->pid == 0)
        run(argv, dir, fds[1], log != NULL);
    if (fds[1] >= 0)
        close(fds[1]);
    if (fds[1] < 0 || c->pid < 0) {
        if (fds[0] >= 0)
            close(fds[0]);
        c->pid = 0;
        return tp_fail(err, TP_E_NOMEM, "cannot run %s: %s", argv[0], strerror(errno));
    }
    c->fd = fds[0];
    return TP_OK;
}

static void take(struct child *c)
{
    while (c->fd >= 0 && c->n < OUTPUT_MAX) {
        char *more = realloc(c->text, c->n + PIECE + 1);
        ssize_t got;

        if (!more)
            return;
        c->text = more;
        got = read(c->fd, c->text + c->n, PIECE);
        c->n += got > 0 ? (size_t)got : 0;
        c->text[c->n] = 0;
        if (got <= 0)
            return;
    }
}

void child_look(struct child *c, double now)
{
    if (!c->pid)
        return;
    take(c);
    if (c->until > 0 && now > c->until)
        kill(c->pid, SIGKILL);
}

int child_over(struct child *c, int status)
{
    take(c);
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->pid = 0;
    while (c->n > 0 && isspace((unsigned char)c->text[c->n - 1]))
        c->text[--c->n] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

const char *child_last_line(const struct child *c)
{
    const char *newline = c->text ? strrchr(c->text, '\n') : NULL;

    return newline ? newline + 1 : c->text ? c->text : "";
}

void child_free(struct child *c)
{
    int status = 0;

    if (c->pid) {
        kill(c->pid, SIGKILL);
        waitpid(c->pid, &status, 0);
        child_over(c, status);
    }
    free(c->text);
    *c = (struct child){ .fd = -1 };
}
