/* orchestrator/web/control.c - see orchestrator/web/control.h. */
#include "orchestrator/web/control.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { REQUEST_MAX = 64 << 10, ANSWER_MAX = 64 << 20, PATIENCE_MS = 300, ASK_PATIENCE_S = 10 };

struct control {
    int fd;
    char path[PATH_MAX], state[PATH_MAX];
};

/* The address of STATE/control. An address holds 108 bytes, but the path may be longer, so this
 * uses /proc/self/fd/N. The caller closes *dir. */
static tp_status address(struct sockaddr_un *a, int *dir, const char *state, struct tp_err *err)
{
    *dir = open(state, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*dir < 0 && errno == ENOENT)
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such folder: this job has not been run", state);
    if (*dir < 0)
        return tp_fail_errno(err, "%s: cannot open", state);
    *a = (struct sockaddr_un){ .sun_family = AF_UNIX };
    snprintf(a->sun_path, sizeof a->sun_path, "/proc/self/fd/%d/control", *dir);
    return TP_OK;
}

tp_status control_open(struct control **out, const char *state, const struct home *home,
                       struct tp_err *err)
{
    struct control *c = calloc(1, sizeof *c);
    struct sockaddr_un a;
    int dir = -1;
    tp_status st;

    if (!c)
        return tp_fail(err, TP_E_NOMEM, "no memory");
    c->fd = -1;
    snprintf(c->path, sizeof c->path, "%s/control", state);
    snprintf(c->state, sizeof c->state, "%.4000s", state);
    TP_TRY(address(&a, &dir, state, err));
    unlink(c->path); /* of a tp-run that was killed: no other can run, because this one holds the
                        lock */
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0 || bind(c->fd, (struct sockaddr *)&a, sizeof a) != 0 ||
        chmod(c->path, 0600) != 0 || listen(c->fd, 16) != 0)
        TP_TRY(tp_fail_errno(err, "%s: cannot listen", c->path));
    TP_TRY(home_write(home, state, err));
    *out = c;
    c = NULL;
done:
    if (dir >= 0)
        close(dir);
    control_close(c);
    return st;
}

void control_close(struct control *c)
{
    if (!c)
        return;
    if (c->fd >= 0) {
        close(c->fd);
        unlink(c->path);
        home_remove(c->state);
    }
    free(c);
}

int control_fd(const struct control *c)
{
    return c->fd;
}

static void set_patience(int fd, int ms)
{
    const struct timeval t = { .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

/* Receive a line, or everything until the other side closes; malloc'ed. */
static char *receive(int fd, size_t max)
{
    size_t size = 4096, n = 0;
    char *text = malloc(size);

    while (text && n < max) {
        ssize_t got = recv(fd, text + n, size - n - 1, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        n += (size_t)got;
        if (memchr(text + n - (size_t)got, '\n', (size_t)got))
            break;
        if (n + 1 == size) {
            char *more = realloc(text, size *= 2);

            if (!more)
                break;
            text = more;
        }
    }
    if (text)
        text[n] = 0;
    return text;
}

static bool deliver(int fd, const json_t *o)
{
    char *text = json_dumps(o, JSON_COMPACT);
    size_t n = text ? strlen(text) : 0, at = 0;

    if (text)
        text[n++] = '\n';
    while (at < n) {
        ssize_t put = send(fd, text + at, n - at, MSG_NOSIGNAL);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            break;
        at += (size_t)put;
    }
    free(text);
    return n > 0 && at == n;
}

void control_serve(struct control *c, json_t *(*answer)(void *ctx, const json_t *request),
                   void *ctx)
{
    int fd;

    while ((fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        json_t *request, *reply;
        char *text;

        set_patience(fd, PATIENCE_MS);
        text = receive(fd, REQUEST_MAX);
        request = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
        reply = json_is_object(request) ? answer(ctx, request)
                                        : json_pack("{s:b,s:s,s:i}", "ok", 0, "error",
                                                    "this is not a request", "exit", 2);
        if (reply)
            deliver(fd, reply);
        json_decref(reply);
        json_decref(request);
        free(text);
        close(fd);
    }
}

tp_status control_ask(json_t **answer, const char *state, const json_t *request, struct tp_err *err)
{
    struct sockaddr_un a;
    int dir = -1, fd = -1;
    char *text = NULL;
    tp_status st = address(&a, &dir, state, err);

    if (st)
        return st;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        st = errno == ENOENT || errno == ECONNREFUSED
                 ? tp_fail(err, TP_E_NOTFOUND, "%s: no tp-run is running this job", state)
                 : tp_fail_errno(err, "%s/control: cannot connect", state);
        goto done;
    }
    set_patience(fd, ASK_PATIENCE_S * 1000);
    text = deliver(fd, request) ? receive(fd, ANSWER_MAX) : NULL;
    *answer = text ? json_loads(text, 0, NULL) : NULL;
    if (!*answer)
        st = tp_fail(err, TP_E_IO, "%s: tp-run did not answer", state);
done:
    free(text);
    if (fd >= 0)
        close(fd);
    close(dir);
    return st;
}
