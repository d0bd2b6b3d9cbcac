/*
 * storage/http.h - one HTTP exchange with libcurl: a request is sent, and a reply comes or does
 * not. storage/remote.h decides what is sent, and whether it is sent again.
 *
 * Certificates and host names are always checked. Only http and https are spoken, and a redirect
 * never leads from https to http. A request that carries credentials must not follow redirects.
 */
#ifndef STORAGE_HTTP_H
#define STORAGE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "storage/http_reply.h"

enum {
    HTTP_HEADERS_MAX = 16,
    HTTP_SLOWEST_BYTES_PER_S = 1000, /* a transfer that moves less has stalled */
};

/* The connections that are open and idle. */
struct http_client;

struct http_client_options {
    const char *ca_file; /* certificates to trust, PEM; NULL: the system's. Borrowed */
    double stall_s;      /* a transfer that has stalled for so long has failed */
};

tp_status http_client_new(struct http_client **out, const struct http_client_options *options,
                          struct tp_err *err);

struct http_request {
    const char *method;
    const char *url;
    const char *headers[HTTP_HEADERS_MAX]; /* "name: value" */
    int n_headers;
    bool follow; /* redirects */
    bool once;   /* a request whose second try has another outcome: libcurl repeats one by itself
                    when the connection that it used again turns out to be closed */
    const void *body; /* NULL: none */
    size_t body_bytes;
    void *into; /* the body of a reply with `status` goes here, at most `room` bytes */
    size_t room;
    long status; /* 206 for a range, else 200 */
};

/* Send a request. Thread safe: each call uses an idle connection or opens one. The outcome is in
 * the reply, also when there was none. limit_s ends any exchange: it bounds one that does not
 * stall, but has no end. */
void http_send(struct http_reply *reply, struct http_client *c, const struct http_request *q,
               double limit_s);

#endif
