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

#include "core/text.h"
#include "orchestrator/process/spawn.h"

/* A list of all nodes or jobs of a large cluster has some MiB. */
enum { OUTPUT_MAX = 64 << 20, PIECE = 64 << 10, PIPE_BYTES = 1 << 20 };

/* Open a file or a pipe for the output: fds[1] is for writing; fds[0] for reading, or -1. */
static bool open_output(int fds[2], const char *log)
{
    fds[0] = fds[1] = -1;
    if (log) {
        fds[1] = open(log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
        return fds[1] >= 0;
    }
    if (pipe2(fds, O_CLOEXEC) || fcntl(fds[0], F_SETFL, O_NONBLOCK))
        return false;
    fcntl(fds[1], F_SETPIPE_SZ, PIPE_BYTES); /* if it can: then few polls are enough */
    return true;
}

tp_status child_start(struct child *c, const struct child_setup *setup, struct tp_err *err)
{
    struct spawn s = { .argv = setup->argv,
                       .env = setup->env,
                       .dir = setup->dir,
                       .report = -1,
                       .own_session = setup->log != NULL };
    int fds[2];

    free(c->text);
    *c = (struct child){ .fd = -1 };
    if (open_output(fds, setup->log)) {
        s.out = fds[1];
        c->pid = spawn_start(&s);
    } else {
        c->pid = -1;
    }
    if (c->pid < 0) {
        tp_fail(err, TP_E_NOMEM, "cannot run %s: %s", setup->argv[0], strerror(errno));
        c->pid = 0;
        if (fds[0] >= 0)
            close(fds[0]);
        fds[0] = -1;
    }
    if (fds[1] >= 0)
        close(fds[1]);
    c->fd = fds[0];
    return c->pid ? TP_OK : TP_E_NOMEM;
}

/* Make room for more output, twice as much each time. False: no memory. */
static bool make_room(struct child *c)
{
    size_t room = c->room < PIECE ? PIECE : 2 * c->room;
    char *more;

    if (c->n < c->room)
        return true;
    room = room < OUTPUT_MAX ? room : OUTPUT_MAX;
    if (!(more = realloc(c->text, room + 1)))
        return false;
    c->text = more;
    c->room = room;
    return true;
}

static void take_output(struct child *c)
{
    while (c->fd >= 0 && c->n < OUTPUT_MAX && make_room(c)) {
        const ssize_t got = read(c->fd, c->text + c->n, c->room - c->n);

        c->n += got > 0 ? (size_t)got : 0;
        c->text[c->n] = 0;
        if (got <= 0)
            return;
    }
}

/* Of output that is too long, the rest is read too, or the program would wait for ever. */
static void drop_output(struct child *c)
{
    char piece[4096];

    for (int i = 0; c->fd >= 0 && c->n == OUTPUT_MAX && i < PIPE_BYTES / (int)sizeof piece; i++) {
        if (read(c->fd, piece, sizeof piece) <= 0)
            return;
        c->too_long = true;
    }
}

void child_poll(struct child *c, double now)
{
    if (!c->pid)
        return;
    take_output(c);
    drop_output(c);
    if (c->until > 0 && now > c->until)
        kill(c->pid, SIGKILL);
}

int child_ended(struct child *c, int status)
{
    take_output(c);
    drop_output(c);
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->pid = 0;
    while (c->n > 0 && isspace((unsigned char)c->text[c->n - 1]))
        c->text[--c->n] = 0;
    text_last_line(c->last, sizeof c->last, c->text ? c->text : "", "");
    if (c->too_long && status == 0) {
        snprintf(c->last, sizeof c->last, "it printed more than %d MiB", OUTPUT_MAX >> 20);
        return CHILD_TOO_LONG;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void child_free(struct child *c)
{
    int status = 0;

    if (c->pid) {
        kill(c->pid, SIGKILL);
        waitpid(c->pid, &status, 0);
        child_ended(c, status);
    }
    free(c->text);
    *c = (struct child){ .fd = -1 };
}
