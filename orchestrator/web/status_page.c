/* orchestrator/web/status_page.c - see orchestrator/web/status_page.h. */
#include "orchestrator/web/status_page.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/clock.h"
#include "core/file.h"
#include "orchestrator/web/listen_address.h"
#include "orchestrator/web/metrics.h"

enum { TOKEN_MAX = 256, TOKEN_MIN = 16, CONNECTIONS = 128, FULL = 120 };
static const double CONNECTION_S = 10; /* a connection is closed after this time */

/* The page itself, status_page.html, is part of the program. */
__asm__(".section .rodata\n"
        ".global tp_page_html\n"
        ".global tp_page_html_end\n"
        "tp_page_html:\n"
        ".incbin \"orchestrator/web/status_page.html\"\n"
        "tp_page_html_end:\n"
        ".byte 0\n"
        ".previous\n");
extern const char tp_page_html[], tp_page_html_end[];

struct status_page {
    struct MHD_Daemon *daemon;
    struct {
        int fd;       /* 0: free */
        double since; /* when it was opened */
    } client[CONNECTIONS];
    int clients;
    struct status_page_source source;
    char url[160];
    char token[TOKEN_MAX + 1]; /* "": none */
};

static tp_status read_token(struct status_page *p, const char *path, struct tp_err *err)
{
    struct arena arena = { 0 };
    char *text;
    size_t n;
    tp_status st = file_read_all(&text, &n, path, TOKEN_MAX, &arena, err);

    if (st == TP_OK) {
        text[strcspn(text, " \t\r\n")] = 0;
        if (strlen(text) < TOKEN_MIN)
            st = tp_fail(err, TP_E_USAGE, "%s: expected a token of at least %d characters", path,
                         TOKEN_MIN);
        else
            snprintf(p->token, sizeof p->token, "%s", text);
    }
    arena_free(&arena);
    return st;
}

/* Compare in a time that does not depend on where the two differ. */
static bool same_token(const char *given, const char *token)
{
    size_t n = strlen(token);
    unsigned char differ = strlen(given) != n;

    for (size_t i = 0; i < n && i <= strlen(given); i++)
        differ |= (unsigned char)(given[i] ^ token[i]);
    return !differ;
}

static bool may_read(const struct status_page *p, struct MHD_Connection *c)
{
    const char *bearer = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    const char *query = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "token");

    if (!p->token[0])
        return true;
    return (bearer && strncmp(bearer, "Bearer ", 7) == 0 && same_token(bearer + 7, p->token)) ||
           (query && same_token(query, p->token));
}

/* Whether the Host header is an address. A name is refused, because another site can resolve its
 * own name to this address and so make a browser send such requests. */
static bool host_is_address(struct MHD_Connection *c)
{
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    char host[64];
    struct in6_addr ignored;
    size_t n = given ? strlen(given) : 0, name;

    if (!given)
        return true;
    name = given[0] == '[' ? strcspn(given, "]") + 1 : strcspn(given, ":");
    if (n >= sizeof host || name > n ||
        (given[name] && (given[name] != ':' ||
                         strspn(given + name + 1, "0123456789") != strlen(given + name + 1))))
        return false;
    if (given[0] == '[') {
        snprintf(host, sizeof host, "%.*s", (int)name - 2, given + 1);
        return inet_pton(AF_INET6, host, &ignored) == 1;
    }
    snprintf(host, sizeof host, "%.*s", (int)name, given);
    return strcmp(host, "localhost") == 0 || inet_pton(AF_INET, host, &ignored) == 1;
}

static enum MHD_Result reply(struct MHD_Connection *c, unsigned code, const char *type,
                             const char *text, size_t n, enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(n, (void *)(uintptr_t)text, mode);
    enum MHD_Result result;

    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(r, "Content-Security-Policy",
                            "default-src 'none'; style-src 'unsafe-inline'; "
                            "script-src 'unsafe-inline'; connect-src 'self'");
    result = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return result;
}

static enum MHD_Result reply_text(struct MHD_Connection *c, unsigned code, const char *text)
{
    return reply(c, code, "text/plain; charset=utf-8", text, strlen(text), MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result reply_json(struct MHD_Connection *c, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;

    json_decref(o);
    if (!text)
        return reply_text(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
    return reply(c, MHD_HTTP_OK, "application/json", text, strlen(text), MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result reply_metrics(struct MHD_Connection *c, json_t *status)
{
    size_t n = 0;
    char *text = status ? metrics_text(&n, status, NULL) : NULL;

    json_decref(status);
    if (!text)
        return reply_text(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
    return reply(c, MHD_HTTP_OK, "text/plain; version=0.0.4", text, n, MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result answer(void *ctx, struct MHD_Connection *c, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *size, void **seen)
{
    struct status_page *p = ctx;

    (void)version;
    (void)data;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return reply_text(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET is allowed\n");
    if (!*seen) { /* this call has the headers; the next one has the body, which is empty */
        *seen = p;
        return MHD_YES;
    }
    *size = 0;
    if (!host_is_address(c))
        return reply_text(c, MHD_HTTP_FORBIDDEN, "use the address, not a name\n");
    if (!may_read(p, c))
        return reply_text(c, MHD_HTTP_UNAUTHORIZED, "a token is needed: ?token=...\n");
    if (strcmp(url, "/") == 0)
        return reply(c, MHD_HTTP_OK, "text/html; charset=utf-8", tp_page_html,
                     (size_t)(tp_page_html_end - tp_page_html), MHD_RESPMEM_PERSISTENT);
    if (strcmp(url, "/status") == 0)
        return reply_json(c, p->source.status(p->source.ctx));
    if (strcmp(url, "/timeline") == 0)
        return reply_json(c, p->source.timeline(p->source.ctx));
    if (strcmp(url, "/events") == 0)
        return reply_json(c, p->source.events(p->source.ctx));
    if (strcmp(url, "/metrics") == 0)
        return reply_metrics(c, p->source.status(p->source.ctx));
    return reply_text(c, MHD_HTTP_NOT_FOUND, "no such page\n");
}

/* ---- connections ---- */

/* End the oldest connection, so that slow clients do not keep others out. */
static void end_oldest(struct status_page *p)
{
    int oldest = -1;

    for (int i = 0; i < CONNECTIONS; i++)
        if (p->client[i].fd > 0 && (oldest < 0 || p->client[i].since < p->client[oldest].since))
            oldest = i;
    if (oldest >= 0) {
        shutdown(p->client[oldest].fd, SHUT_RDWR);
        p->client[oldest].since = clock_seconds(); /* it is closed soon: do not end it again */
    }
}

static void on_connection(void *ctx, struct MHD_Connection *c, void **place,
                          enum MHD_ConnectionNotificationCode what)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct status_page *p = ctx;
    int i = 0;

    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*place) {
            p->client[(uintptr_t)*place - 1].fd = 0;
            p->clients--;
        }
        return;
    }
    while (i < CONNECTIONS && p->client[i].fd > 0)
        i++;
    if (i == CONNECTIONS || !info)
        return;
    p->client[i].fd = (int)info->connect_fd;
    p->client[i].since = clock_seconds();
    *place = (void *)(uintptr_t)(i + 1);
    if (++p->clients > FULL)
        end_oldest(p);
}

void status_page_tick(struct status_page *p)
{
    double now = clock_seconds();

    for (int i = 0; i < CONNECTIONS; i++)
        if (p->client[i].fd > 0 && now - p->client[i].since > CONNECTION_S) {
            shutdown(p->client[i].fd, SHUT_RDWR);
            p->client[i].since = now;
        }
    status_page_serve(p);
}

/* ---- opening and serving ---- */

static tp_status start(struct status_page *p, const struct listen_address *a, struct tp_err *err)
{
    unsigned flags = MHD_USE_EPOLL | (a->a.any.sa_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    const char *colon = strrchr(a->text, ':');
    const bool bare = a->a.any.sa_family == AF_INET6 && a->text[0] != '[';
    int fd = -1;
    tp_status st = listen_address_open(&fd, a, FULL, err);

    if (st)
        return st;
    p->daemon = MHD_start_daemon(flags, 0, NULL, NULL, answer, p, MHD_OPTION_LISTEN_SOCKET, fd,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
                                 MHD_OPTION_CONNECTION_TIMEOUT, 10U, MHD_OPTION_NOTIFY_CONNECTION,
                                 on_connection, p, MHD_OPTION_END);
    if (!p->daemon) {
        close(fd);
        return tp_fail(err, TP_E_IO, "page.listen: cannot serve on %s", a->text);
    }
    snprintf(p->url, sizeof p->url, "http://%s%.*s%s:%u/", bare ? "[" : "", (int)(colon - a->text),
             a->text, bare ? "]" : "", listen_address_port(fd));
    return TP_OK;
}

tp_status status_page_open(struct status_page **out, const char *text, const char *token_file,
                           const struct status_page_source *source, struct tp_err *err)
{
    struct status_page *p = calloc(1, sizeof *p);
    struct listen_address a;
    tp_status st;

    if (!p)
        return tp_fail(err, TP_E_NOMEM, "no memory for the status page");
    p->source = *source;
    TP_TRY(listen_address_parse(&a, text, err));
    if (token_file)
        TP_TRY(read_token(p, token_file, err));
    if (!a.loopback && !p->token[0])
        TP_TRY(tp_fail(err, TP_E_USAGE,
                       "page.listen: %s can be reached from other machines: set page.token_file",
                       text));
    TP_TRY(start(p, &a, err));
    *out = p;
    p = NULL;
done:
    status_page_close(p);
    return st;
}

void status_page_close(struct status_page *p)
{
    if (!p)
        return;
    if (p->daemon)
        MHD_stop_daemon(p->daemon);
    free(p);
}

int status_page_fd(const struct status_page *p)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(p->daemon, MHD_DAEMON_INFO_EPOLL_FD);

    return info ? info->epoll_fd : -1;
}

void status_page_serve(struct status_page *p)
{
    MHD_run(p->daemon);
}

tp_status status_page_add(struct status_page *p, int client, struct tp_err *err)
{
    const struct sockaddr from = { .sa_family = AF_UNIX };

    if (MHD_add_connection(p->daemon, client, &from, sizeof from) == MHD_YES)
        return TP_OK;
    return tp_fail(err, TP_E_IO, "the status page cannot serve a client: %s", strerror(errno));
}

const char *status_page_url(const struct status_page *p)
{
    return p->url;
}
