/*
 * storage/sigv4.h - AWS Signature Version 4 for S3: the headers by which a server knows who sends a
 * request and that nobody changed it (docs.aws.amazon.com, "Authenticating Requests: Using the
 * Authorization Header"). Pure computation; OpenSSL has SHA-256 and HMAC.
 *
 * libcurl can sign too, but the versions before 8 sign the query as it is, unsorted (curl issue
 * 9717), and send UNSIGNED-PAYLOAD for what is uploaded. Here the hash of the payload is signed, so
 * that the server refuses a body that was damaged on its way.
 */
#ifndef STORAGE_SIGV4_H
#define STORAGE_SIGV4_H

#include <stddef.h>
#include <time.h>

#include "core/err.h"

enum { SIGV4_HEADERS_MAX = 12, SIGV4_DATE = 17, SIGV4_HASH = 65, SIGV4_AUTHORIZATION_MAX = 1024 };

struct sigv4_credentials {
    char access_key[129];
    char secret_key[129];
    char token[4097]; /* of temporary credentials; "": there is none */
    char region[65];
};

/* A request, as it is sent. */
struct sigv4_request {
    const char *method;
    const char *path;  /* encoded: "/bucket/a%20b" */
    const char *query; /* encoded, sorted by name: "list-type=2&prefix=a"; "": none */
    /* Headers that are signed, as "name: value" with lower-case names, ascending. They include
     * host, x-amz-content-sha256, x-amz-date, and x-amz-security-token when there is a token. */
    const char *headers[SIGV4_HEADERS_MAX];
    int n_headers;
    const char *payload_sha256;
};

/* "20130524T000000Z". */
void sigv4_date(char out[SIGV4_DATE], time_t now);

/* SHA-256 of n bytes, as lower-case hexadecimal digits. */
tp_status sigv4_hash(char out[SIGV4_HASH], const void *data, size_t n, struct tp_err *err);

/* The value of the header Authorization of a request that is sent at `date`. It contains the access
 * key, but not the secret. */
tp_status sigv4_sign(char out[SIGV4_AUTHORIZATION_MAX], const struct sigv4_request *request,
                     const struct sigv4_credentials *credentials, const char *date,
                     struct tp_err *err);

#endif
