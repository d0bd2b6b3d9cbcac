/*
 * orchestrator/web/listen_address.h - the address of page.listen, and a socket that listens there.
 */
#ifndef ORCHESTRATOR_WEB_LISTEN_ADDRESS_H
#define ORCHESTRATOR_WEB_LISTEN_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "core/err.h"

union listen_address_any {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

struct listen_address {
    union listen_address_any a;
    const char *text; /* what was parsed; borrowed */
    bool loopback;    /* only this machine can connect */
};

/* Parse address:port, numeric: "127.0.0.1:8080", "[::1]:0", "localhost:0". TP_E_USAGE. */
tp_status listen_address_parse(struct listen_address *out, const char *text, struct tp_err *err);

/* Open a socket that listens there. TP_E_USAGE: another program does, or the address is not one of
 * this host or needs privileges. */
tp_status listen_address_open(int *fd, const struct listen_address *a, int backlog,
                              struct tp_err *err);

/* The port that a socket is bound to; 0: none. */
unsigned listen_address_port(int fd);

#endif
