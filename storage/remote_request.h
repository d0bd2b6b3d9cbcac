/*
 * storage/remote_request.h - a request to a web server or a store, and how it is sent: its URL, its
 * headers, and for S3 a signature. storage/remote.h sends it.
 */
#ifndef STORAGE_REMOTE_REQUEST_H
#define STORAGE_REMOTE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "storage/aws_config.h"
#include "storage/http.h"
#include "storage/location.h"

struct remote_request {
    const char *method;
    const char *path;       /* "s3://bucket/key" or a URL: what it is about, also for messages */
    const char *query;      /* S3: encoded, sorted by name; NULL: none */
    bool of_bucket;         /* S3: about the bucket of the path, not about the key */
    const char *headers[4]; /* "name: value" with lower-case names */
    int n_headers;
    const void *body; /* NULL: none */
    size_t body_bytes;
    void *into; /* for the body of a reply with `status` */
    size_t room;
    long status;     /* the one that is hoped for: 206 for a range, else 200 */
    bool once;       /* as in http_request */
    double within_s; /* try no longer than this; 0: as long as the settings say */
    int most_tries;  /* 0: as many as are usual */
    size_t least;    /* a body with fewer bytes was cut off on its way */
    bool may_stop;   /* a write that may end as reads do; see remote_tries_stop */
};

/* ---- for remote.c ---- */

enum { REMOTE_REQUEST_LINE_MAX = 4352 };

/* A request as it is sent. It has secrets: clear it before it is freed. */
struct remote_request_try {
    const struct remote_request *q; /* borrowed, as is aws */
    const struct aws_config *aws;   /* NULL: not a request to S3, and not signed */
    struct aws_config own;          /* what aws points to, for remote.c */
    struct http_request http;
    char url[LOCATION_URL_MAX], host[256], path[LOCATION_URL_MAX];
    char host_line[300], date_line[64], hash_line[128], token_line[REMOTE_REQUEST_LINE_MAX];
    char authorization_line[SIGV4_AUTHORIZATION_MAX + 32];
    char date[SIGV4_DATE], hash[SIGV4_HASH];
};

/* Prepare what all tries of q have in common. aws: the configuration, if q's path is of S3, else
 * NULL. TP_E_USAGE: the path is too long. */
tp_status remote_request_prepare(struct remote_request_try *t, const struct remote_request *q,
                                 const struct aws_config *aws, struct tp_err *err);

/* Sign it for a try that is made now; nothing without aws. Every try needs a new signature, because
 * it contains the time. */
tp_status remote_request_sign(struct remote_request_try *t, struct tp_err *err);

#endif
