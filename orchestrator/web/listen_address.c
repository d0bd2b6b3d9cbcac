/* orchestrator/web/listen_address.c - see orchestrator/web/listen_address.h. */
#include "orchestrator/web/listen_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tp_status listen_address_parse(struct listen_address *out, const char *text, struct tp_err *err)
{
    const char *colon = strrchr(text, ':');
    struct sockaddr_in *v4 = &out->a.v4;
    struct sockaddr_in6 *v6 = &out->a.v6;
    char host[64], *end;
    long port = colon ? strtol(colon + 1, &end, 10) : -1;

    memset(out, 0, sizeof *out); /* all of the union */
    out->text = text;
    if (port < 0 || port > 65535 || end == colon + 1 || *end || colon - text > 60)
        return tp_fail(err, TP_E_USAGE, "page.listen: \"%s\": expected address:port", text);
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    if (strcmp(host, "localhost") == 0)
        snprintf(host, sizeof host, "127.0.0.1");
    if (host[0] == '[') {
        host[strcspn(host, "]")] = 0;
        memmove(host, host + 1, strlen(host));
    }
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        out->loopback = ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    } else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        out->loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
    } else {
        return tp_fail(err, TP_E_USAGE, "page.listen: \"%s\" is not an IP address", host);
    }
    return TP_OK;
}

tp_status listen_address_open(int *out, const struct listen_address *a, int backlog,
                              struct tp_err *err)
{
    int fd = socket(a->a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
    socklen_t size =
        a->a.any.sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    tp_status st;

    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd >= 0 && bind(fd, &a->a.any, size) == 0 && listen(fd, backlog) == 0) {
        *out = fd;
        return TP_OK;
    }
    if (errno == EADDRINUSE)
        st = tp_fail(err, TP_E_USAGE,
                     "page.listen: another program listens on %s: choose another port, or 0 for a "
                     "free one",
                     a->text);
    else if (errno == EADDRNOTAVAIL || errno == EACCES)
        st = tp_fail(err, TP_E_USAGE, "page.listen: cannot listen on %s: %s", a->text,
                     errno == EACCES ? "ports below 1024 need privileges"
                                     : "it is not an address of this host");
    else
        st = tp_fail_errno(err, "page.listen: cannot listen on %s", a->text);
    if (fd >= 0)
        close(fd);
    return st;
}

unsigned listen_address_port(int fd)
{
    union listen_address_any a = { .any.sa_family = AF_UNSPEC };
    socklen_t size = sizeof a;

    if (getsockname(fd, &a.any, &size) != 0)
        return 0;
    return ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
}
