/* storage/remote_range.c - see storage/remote_range.h. */
#include "storage/remote_range.h"

#include <stdio.h>
#include <string.h>

#include "storage/remote.h"

enum { RANGE_TEXT_MAX = 80 };

static void format_range(char text[RANGE_TEXT_MAX], int64_t begin, int64_t n)
{
    snprintf(text, RANGE_TEXT_MAX, "range: bytes=%lld-%lld", (long long)begin,
             (long long)(begin + n - 1));
}

tp_status remote_range_examine(struct remote_object *o, int64_t offset, int64_t n,
                               unsigned char *into, int64_t *got, struct tp_err *err)
{
    char range[RANGE_TEXT_MAX];
    const struct remote_request q = { .method = "GET",
                                      .path = o->path,
                                      .headers = { range },
                                      .n_headers = 1,
                                      .into = into,
                                      .room = (size_t)n,
                                      .status = 206,
                                      .least = 1 };
    struct http_reply reply;
    int64_t end;
    tp_status st;

    *got = 0;
    format_range(range, offset, n);
    st = remote_send(&reply, &q, err);
    /* An object without bytes, or one that ends before `offset`. Of the former nginx sends all. */
    if (st || reply.status == 416 || (reply.status == 200 && reply.text_bytes == 0))
        return st;
    if (reply.status != 206)
        return remote_fail(&q, &reply, err);
    if (reply.total < 1 || reply.first != offset || reply.last > offset + n - 1)
        return tp_fail(err, TP_E_IO, "%s: the server does not say how long it is", o->path);
    o->size = reply.total;
    memcpy(o->etag, reply.etag, sizeof o->etag);
    end = offset + n < o->size ? offset + n : o->size;
    if (reply.last == end - 1 && reply.bytes == (size_t)(end - offset))
        *got = end - offset;
    return TP_OK;
}

/* What a reply with the right status may still have wrong. */
static tp_status check_reply(const struct http_reply *r, const struct remote_object *o,
                             int64_t begin, int64_t n, struct tp_err *err)
{
    if (o->etag[0] && r->etag[0] && strcmp(o->etag, r->etag) != 0)
        return tp_fail(err, TP_E_IO,
                       "%s: another program replaced it while it was read (its ETag has changed); "
                       "it is not damaged; run this again",
                       o->path);
    if (r->too_long)
        return tp_fail(err, TP_E_IO,
                       "%s: the server sends more than the %lld bytes that were requested", o->path,
                       (long long)n);
    if (r->first == begin && r->last == begin + n - 1 && r->total == o->size)
        return TP_OK;
    return tp_fail(err, TP_E_IO,
                   "%s: the server answers with the bytes %lld to %lld of %lld; %lld to %lld of "
                   "%lld were requested",
                   o->path, (long long)r->first, (long long)r->last, (long long)r->total,
                   (long long)begin, (long long)(begin + n - 1), (long long)o->size);
}

tp_status remote_range_read(const struct remote_object *o, int64_t begin, int64_t n,
                            unsigned char *into, struct tp_err *err)
{
    char range[RANGE_TEXT_MAX], match[HTTP_VALUE_MAX + 16];
    struct remote_request q = { .method = "GET",
                                .path = o->path,
                                .headers = { range },
                                .n_headers = 1,
                                .into = into,
                                .room = (size_t)n,
                                .status = 206,
                                .least = (size_t)n };
    struct http_reply reply;
    tp_status st;

    format_range(range, begin, n);
    if (o->etag[0] == '"') { /* weak ones cannot be conditions of a range */
        snprintf(match, sizeof match, "if-match: %s", o->etag);
        q.headers[q.n_headers++] = match;
    }
    st = remote_send(&reply, &q, err);
    if (st)
        return st;
    if (reply.status == 206)
        return check_reply(&reply, o, begin, n, err);
    if (reply.status == 404 || reply.status == 410 || reply.status == 416)
        return tp_fail(err, TP_E_IO,
                       "%s: another program removed or replaced it while it was read; it is not "
                       "damaged; run this again",
                       o->path);
    return remote_fail(&q, &reply, err);
}
