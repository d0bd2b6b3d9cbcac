/* orchestrator/web/control.c - see orchestrator/web/control.h. */
#include "orchestrator/web/control.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/private_dir.h"

enum { REQUEST_MAX = 64 << 10, ANSWER_MAX = 64 << 20, ASK_PATIENCE_S = 10, CLIENTS = 32 };
static const double CLIENT_PATIENCE_S =
    5; /* for a client to send its request and take its answer */

/* A connection. It has one request, and then one answer. */
struct control_client {
    int fd;       /* -1: free */
    double until; /* when it is closed */
    char *text;   /* the request so far, or the answer; malloc'ed */
    size_t n, size;
    size_t sent; /* bytes of the answer */
    bool has_answer;
};

static const char NAME[] = "control";

struct control {
    int fd, dir; /* listens; the state folder */
    int epoll;   /* readable when there is something to do */
    struct control_client client[CLIENTS];
};

/* The address of `control` in the open state folder. An address holds 108 bytes, but the path of
 * the folder may be longer, so this uses /proc/self/fd/N. */
static struct sockaddr_un address(int dir)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };

    snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%d/%s", dir, NAME);
    return a;
}

/* Whether the process at the other end of a connection belongs to this user. root may do anything,
 * so it is trusted too. */
static bool is_own_peer(int fd)
{
    struct ucred peer;
    socklen_t n = sizeof peer;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

static bool watch(const struct control *c, int op, int fd, uint32_t events,
                  struct control_client *k)
{
    struct epoll_event e = { .events = events, .data.ptr = k };

    return epoll_ctl(c->epoll, op, fd, &e) == 0;
}

tp_status control_open(struct control **out, const char *state, const struct home *home,
                       struct tp_err *err)
{
    struct control *c = calloc(1, sizeof *c);
    struct sockaddr_un a;
    tp_status st;

    if (!c)
        return tp_fail(err, TP_E_NOMEM, "no memory");
    c->fd = c->dir = -1;
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < CLIENTS; i++)
        c->client[i].fd = -1;
    TP_TRY(private_dir_open(&c->dir, state, err));
    a = address(c->dir);
    unlinkat(c->dir, NAME, 0); /* of a tp-run that was killed: no other can run, because this one
                                  holds the lock */
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* bind makes the file with the mode of the socket, so others can never connect */
    if (c->epoll < 0 || c->fd < 0 || fchmod(c->fd, 0600) != 0 ||
        bind(c->fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(c->fd, CLIENTS) != 0 ||
        !watch(c, EPOLL_CTL_ADD, c->fd, EPOLLIN, NULL))
        TP_TRY(tp_fail_errno(err, "%s/%s: cannot listen", state, NAME));
    TP_TRY(home_write(home, c->dir, err));
    *out = c;
    c = NULL;
done:
    control_close(c);
    return st;
}

static void drop(struct control_client *k)
{
    if (k->fd >= 0)
        close(k->fd);
    free(k->text);
    *k = (struct control_client){ .fd = -1 };
}

void control_close(struct control *c)
{
    if (!c)
        return;
    for (int i = 0; i < CLIENTS; i++)
        drop(&c->client[i]);
    if (c->fd >= 0) {
        close(c->fd);
        unlinkat(c->dir, NAME, 0);
        home_remove(c->dir);
    }
    if (c->epoll >= 0)
        close(c->epoll);
    if (c->dir >= 0)
        close(c->dir);
    free(c);
}

int control_fd(const struct control *c)
{
    return c->epoll;
}

/* A line of JSON, malloc'ed; NULL without memory. */
static char *line_of(size_t *n, const json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;

    *n = text ? strlen(text) : 0;
    if (text)
        text[(*n)++] = '\n'; /* instead of the 0 byte */
    return text;
}

/* ---- serving: nothing here waits ---- */

/* Make an answer the text to send. */
static void set_answer(struct control_client *k, json_t *reply)
{
    free(k->text);
    k->text = line_of(&k->n, reply);
    json_decref(reply);
    k->has_answer = true;
}

/* Send what the client takes now. */
static void send_some(const struct control *c, struct control_client *k)
{
    while (k->sent < k->n) {
        ssize_t put = send(k->fd, k->text + k->sent, k->n - k->sent, MSG_NOSIGNAL);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && errno == EAGAIN && watch(c, EPOLL_CTL_MOD, k->fd, EPOLLOUT, k))
            return;
        if (put <= 0)
            break;
        k->sent += (size_t)put;
    }
    drop(k);
}

/* The request is complete, or there will be no more of it. */
static void answer_it(const struct control *c, struct control_client *k,
                      json_t *(*answer)(void *ctx, const json_t *request), void *ctx)
{
    json_t *request = k->text ? json_loads(k->text, JSON_REJECT_DUPLICATES, NULL) : NULL;

    set_answer(k, json_is_object(request) ? answer(ctx, request)
                                          : json_pack("{s:b,s:s,s:i}", "ok", 0, "error",
                                                      "this is not a request", "exit", 2));
    json_decref(request);
    send_some(c, k);
}

/* Make room for more of the request. */
static bool grow(struct control_client *k)
{
    char *more;

    if (k->n + 1 < k->size)
        return true;
    if (k->n >= REQUEST_MAX || !(more = realloc(k->text, k->size ? 2 * k->size : 4096)))
        return false;
    k->text = more;
    k->size = k->size ? 2 * k->size : 4096;
    return true;
}

/* Receive what has arrived. True: the request is complete. */
static bool receive_some(struct control_client *k)
{
    while (grow(k)) {
        ssize_t got = recv(k->fd, k->text + k->n, k->size - k->n - 1, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return false;
        if (got <= 0)
            break;
        k->n += (size_t)got;
        k->text[k->n] = 0;
        if (memchr(k->text + k->n - (size_t)got, '\n', (size_t)got))
            break;
    }
    return true;
}

static void serve_client(const struct control *c, struct control_client *k,
                         json_t *(*answer)(void *ctx, const json_t *request), void *ctx)
{
    if (k->fd < 0)
        return;
    if (k->has_answer)
        send_some(c, k);
    else if (receive_some(k))
        answer_it(c, k, answer, ctx);
}

/* A free place for a connection, if necessary that of the oldest one. */
static struct control_client *place(struct control *c)
{
    struct control_client *oldest = c->client;

    for (int i = 0; i < CLIENTS; i++) {
        if (c->client[i].fd < 0)
            return &c->client[i];
        if (c->client[i].until < oldest->until)
            oldest = &c->client[i];
    }
    drop(oldest);
    return oldest;
}

static void accept_all(struct control *c, json_t *(*answer)(void *ctx, const json_t *request),
                       void *ctx)
{
    int fd;

    while ((fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct control_client *k;

        if (!is_own_peer(fd)) {
            close(fd);
            continue;
        }
        k = place(c);
        *k = (struct control_client){ .fd = fd, .until = clock_seconds() + CLIENT_PATIENCE_S };
        if (watch(c, EPOLL_CTL_ADD, fd, EPOLLIN, k))
            serve_client(c, k, answer, ctx);
        else
            drop(k);
    }
}

void control_serve(struct control *c, json_t *(*answer)(void *ctx, const json_t *request),
                   void *ctx)
{
    struct epoll_event e[CLIENTS];
    int n = epoll_wait(c->epoll, e, CLIENTS, 0);

    for (int i = 0; i < n; i++)
        if (e[i].data.ptr)
            serve_client(c, e[i].data.ptr, answer, ctx);
    for (int i = 0; i < n; i++) /* last, because it may reuse the place of another one above */
        if (!e[i].data.ptr)
            accept_all(c, answer, ctx);
}

void control_tick(struct control *c)
{
    double now = clock_seconds();

    for (int i = 0; i < CLIENTS; i++)
        if (c->client[i].fd >= 0 && now > c->client[i].until)
            drop(&c->client[i]);
}

/* ---- the client's side ---- */

static void set_patience(int fd, int seconds)
{
    const struct timeval t = { .tv_sec = seconds };

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
    size_t n, at = 0;
    char *text = line_of(&n, o);

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

/* Connect to the tp-run of the job. */
static tp_status connect_to(int *fd, int dir, const char *state, struct tp_err *err)
{
    const struct sockaddr_un a = address(dir);

    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || connect(*fd, (const struct sockaddr *)&a, sizeof a) != 0)
        return errno == ENOENT || errno == ECONNREFUSED
                   ? tp_fail(err, TP_E_NOTFOUND, "%s: no tp-run is running this job", state)
                   : tp_fail_errno(err, "%s/%s: cannot connect", state, NAME);
    if (!is_own_peer(*fd))
        return tp_fail(err, TP_E_USAGE, "%s/%s: another user listens there", state, NAME);
    set_patience(*fd, ASK_PATIENCE_S);
    return TP_OK;
}

tp_status control_ask(json_t **answer, const char *state, const json_t *request, struct tp_err *err)
{
    int dir = -1, fd = -1;
    char *text = NULL;
    tp_status st = private_dir_open(&dir, state, err);

    if (st == TP_E_NOTFOUND)
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such folder: this job has not been run", state);
    if (st)
        return st;
    TP_TRY(connect_to(&fd, dir, state, err));
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
