/*
 * storage/http_reply.h - what a server's reply says, and the parsers of it. What a server sends is
 * not trusted.
 */
#ifndef STORAGE_HTTP_REPLY_H
#define STORAGE_HTTP_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_VALUE_MAX = 256, HTTP_ERROR_BYTES = 2048, HTTP_CODE_MAX = 64 };

struct http_reply {
    long status;                  /* 0: there was no reply */
    size_t bytes;                 /* of the body, in `into` */
    bool too_long;                /* the body has more than `room` bytes */
    char etag[HTTP_VALUE_MAX];    /* with its quotes; "": the server sent none */
    char region[HTTP_VALUE_MAX];  /* x-amz-bucket-region */
    int64_t first, last, total;   /* Content-Range, 0 <= first <= last < total; -1: not known */
    double retry_after_s;         /* what Retry-After says, from now on; 0: nothing */
    double moving_s;              /* from the request until the last byte of a body moved */
    char text[HTTP_ERROR_BYTES];  /* the body of any other reply, or its beginning */
    size_t text_bytes;            /* of `text` */
    int tries;                    /* requests that were sent until this reply; remote_send */
    bool conflicted;              /* one of these had a conflict with another program's */
    bool may_retry;               /* there was no reply, and there may be one next time */
    char problem[HTTP_VALUE_MAX]; /* why there was none: a part of a sentence */
};

/* No reply yet. */
void http_reply_begin(struct http_reply *r);

/* Read a line of the head, n bytes with their line end. The status line of another reply (after a
 * redirect) forgets the headers of the one before. A header that is too long, or has characters
 * that no header has, is as if it was not there. */
void http_reply_header(struct http_reply *r, const char *line, size_t n);

/* The error code of S3's XML, "NoSuchKey"; "" when there is none. Only letters and digits are
 * taken. Returns out. */
const char *http_reply_code(char out[HTTP_CODE_MAX], const char *text);

/* What to do about a reply with this error code that another try will not change: the end of a
 * sentence; "" when nothing is known. */
const char *http_reply_advice(const struct http_reply *r, const char *code);

/* Whether an error code says that the keys or their token are not valid, perhaps not any more. */
bool http_reply_refuses_keys(const char *code);

#endif
