/* storage/store_object.c - see storage/store_object.h. */
#include "storage/store_object.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/object.h"
#include "storage/remote.h"

enum { SWAP_BYTES = 4096, REPLY_BYTES = 8192, WITHDRAWALS = 6 };

/* Whether the object at a path is these bytes. */
static bool is_content(const char *path, const void *data, size_t n)
{
    struct object o = OBJECT_NONE;
    struct tp_err ignored;
    int64_t size = 0;
    char *found = malloc(n + 1);
    bool same = found && !object_open(&o, &size, path, &ignored) && size == (int64_t)n &&
                !object_read_at(&o, path, 0, found, n, &ignored) && memcmp(found, data, n) == 0;

    object_close(&o);
    free(found);
    return same;
}

/* Write q->body to q->path. 200 alone proves nothing, because an error document or a proxy's page
 * may come with it: a store that has written an object says its ETag. is_own: nobody else writes
 * these bytes, so when they are there, a try without a reply has written them. TP_E_EXISTS: a
 * condition of the request forbids it. */
static tp_status put(struct remote_request q, bool is_own, struct tp_err *err)
{
    char text[REPLY_BYTES];
    struct http_reply reply;
    tp_status st;

    q.method = "PUT";
    q.into = text;
    q.room = sizeof text;
    q.status = 200;
    st = remote_send(&reply, &q, err);
    if (st || (reply.status == 200 && reply.etag[0] && !reply.too_long))
        return st;
    if ((reply.status == 200 || (reply.status == 412 && reply.tries > 1)) && is_own &&
        is_content(q.path, q.body, q.body_bytes))
        return TP_OK;
    if (reply.status == 412)
        return tp_fail(err, TP_E_EXISTS, "%s: exists already; another writer was faster", q.path);
    if (reply.status == 200)
        return tp_fail(err, TP_E_IO, "%s: the server answers 200, but has not written it", q.path);
    return remote_fail(&q, &reply, err);
}

static tp_status create(const char *path, const void *data, size_t n, bool is_own,
                        struct tp_err *err)
{
    return put((struct remote_request){ .path = path,
                                        .headers = { "if-none-match: *" },
                                        .once = true,
                                        .n_headers = 1,
                                        .body = data,
                                        .body_bytes = n },
               is_own, err);
}

tp_status store_object_create(const char *path, const void *data, size_t n, struct tp_err *err)
{
    return create(path, data, n, true, err);
}

/* Replace an object by a text while it has this ETag. */
static tp_status put_while(const char *path, const char *etag, const char *text, struct tp_err *err)
{
    char match[HTTP_VALUE_MAX + 16];

    snprintf(match, sizeof match, "if-match: %s", etag);
    return put((struct remote_request){ .path = path,
                                        .headers = { match },
                                        .n_headers = 1,
                                        .once = true,
                                        .body = text,
                                        .body_bytes = strlen(text) },
               false, err);
}

/* An ETag without its quotes, in place. False: it has none. */
static bool unquote(char *etag)
{
    size_t n = strlen(etag);

    if (n < 3 || etag[0] != '"' || etag[n - 1] != '"')
        return false;
    memmove(etag, etag + 1, n - 2);
    etag[n - 2] = 0;
    return true;
}

/* The ETag of an object whose content is this text. TP_E_EXISTS: it has another content. */
static tp_status find_etag(char etag[HTTP_VALUE_MAX], const char *path, const char *text,
                           struct tp_err *err)
{
    char found[SWAP_BYTES];
    const struct remote_request get = {
        .method = "GET", .path = path, .into = found, .room = sizeof found, .status = 200
    };
    struct http_reply reply;
    tp_status st = remote_send(&reply, &get, err);

    if (st)
        return st;
    if (reply.status != 200)
        return remote_fail(&get, &reply, err);
    if (reply.bytes != strlen(text) || memcmp(found, text, reply.bytes) != 0)
        return TP_E_EXISTS;
    snprintf(etag, HTTP_VALUE_MAX, "%s", reply.etag);
    return TP_OK;
}

tp_status store_object_swap(const char *path, const char *before, const char *after,
                            struct tp_err *err)
{
    char etag[HTTP_VALUE_MAX] = "", again[HTTP_VALUE_MAX];
    tp_status st;

    if (!before)
        return create(path, after, strlen(after), false, err);
    st = find_etag(etag, path, before, err);
    if (!st)
        st = put_while(path, etag, after, err);
    /* Ceph 16 compares If-Match with the ETag without its quotes, so it refuses the right one. */
    if (st == TP_E_EXISTS && etag[0] && !find_etag(again, path, before, err) &&
        strcmp(again, etag) == 0 && unquote(etag))
        st = put_while(path, etag, after, err);
    if (st != TP_E_EXISTS)
        return st;
    return tp_fail(err, TP_E_EXISTS, "%s: another program changed it at the same time; try again",
                   path);
}

tp_status store_object_replace(const char *path, const void *data, size_t n, struct tp_err *err)
{
    return put((struct remote_request){ .path = path, .body = data, .body_bytes = n }, true, err);
}

tp_status store_object_delete(const char *path, struct tp_err *err)
{
    const struct remote_request q = { .method = "DELETE", .path = path, .status = 204 };
    struct http_reply reply;
    tp_status st = remote_send(&reply, &q, err);

    if (st || reply.status == 204 || reply.status == 200 || reply.status == 404)
        return st;
    return remote_fail(&q, &reply, err);
}

tp_status store_object_withdraw(const char *path, const void *data, size_t n, struct tp_err *err)
{
    const struct remote_request q = {
        .method = "DELETE", .path = path, .most_tries = 1, .status = 204
    };
    struct http_reply reply;
    tp_status st = TP_OK;

    for (int i = 0; i < WITHDRAWALS && is_content(path, data, n); i++)
        st = remote_send(&reply, &q, err); /* is_content asks whether it was done, and may wait */
    return st;
}
