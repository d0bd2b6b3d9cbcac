/* storage/s3_list.c - see storage/s3_list.h. */
#include "storage/s3_list.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "storage/location.h"
#include "storage/remote.h"

enum { PAGE_BYTES = 4 << 20, ENTRIES_MAX = 1 << 22, QUERY_MAX = 3 * S3_TOKEN_MAX + 4096 };

/* The text of the element `name` that begins before `end`; *length is its length. NULL: none. */
static const char *element(const char *text, const char *end, const char *name, size_t *length)
{
    char open[32], close[32];
    const char *begin, *stop;

    snprintf(open, sizeof open, "<%s>", name);
    snprintf(close, sizeof close, "</%s>", name);
    begin = strstr(text, open);
    if (!begin || begin >= end)
        return NULL;
    begin += strlen(open);
    stop = strstr(begin, close);
    if (!stop || stop > end)
        return NULL;
    *length = (size_t)(stop - begin);
    return begin;
}

/* Add the last component of a key or a prefix. False: no memory. */
static bool add(struct folder_entry **entries, int *n, const char *key, size_t length, int64_t size)
{
    struct folder_entry e = { .size = size, .is_folder = size < 0 };
    size_t begin;

    if (e.is_folder && length > 0 && key[length - 1] == '/')
        length--;
    for (begin = length; begin > 0 && key[begin - 1] != '/';)
        begin--;
    if (length - begin >= sizeof e.name)
        return true;
    memcpy(e.name, key + begin, length - begin);
    if (!file_name_is_plain(e.name) || strchr(e.name, '&')) /* an entity: no name of ours */
        return true;
    if ((*n & (*n - 1)) == 0) { /* a power of two, and full */
        struct folder_entry *more =
            *n < ENTRIES_MAX ? realloc(*entries, (size_t)(*n ? 2 * *n : 1) * sizeof *more) : NULL;

        if (!more)
            return false;
        *entries = more;
    }
    (*entries)[(*n)++] = e;
    return true;
}

/* The character of an entity of XML, and the length of its text; 0: it is none of ASCII. */
static char entity(const char *text, size_t *length)
{
    static const struct {
        const char *text;
        char c;
    } named[] = {
        { "&amp;", '&' }, { "&lt;", '<' }, { "&gt;", '>' }, { "&quot;", '"' }, { "&apos;", '\'' }
    };
    const bool is_hex = strncmp(text, "&#x", 3) == 0;
    char *end;
    long code;

    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (strncmp(text, named[i].text, *length = strlen(named[i].text)) == 0)
            return named[i].c;
    if (strncmp(text, "&#", 2) != 0)
        return 0;
    code = strtol(text + (is_hex ? 3 : 2), &end, is_hex ? 16 : 10);
    *length = (size_t)(end - text) + 1;
    return *end == ';' && code > 0 && code < 128 ? (char)code : 0;
}

/* Replace entities, in place: the token of Ceph is a key, which may have a "&". */
static void decode(char *text)
{
    const char *from = text;
    char *to = text;

    while (*from) {
        size_t length = 0;
        const char c = entity(from, &length);

        *to++ = c ? c : *from;
        from += c ? length : 1;
    }
    *to = 0;
}

bool s3_list_parse(struct folder_entry **entries, int *n, char token[S3_TOKEN_MAX],
                   const char *text)
{
    const char *end = text + strlen(text), *at = text, *value;
    size_t length = 0;

    token[0] = 0;
    if (!strstr(text, "<ListBucketResult") || !strstr(text, "</ListBucketResult>"))
        return false;
    while ((value = element(at, end, "Contents", &length))) {
        const char *stop = value + length, *key, *size;
        size_t key_length = 0, size_length = 0;

        key = element(value, stop, "Key", &key_length);
        size = element(value, stop, "Size", &size_length);
        if (!key || !size ||
            !add(entries, n, key, key_length, (int64_t)strtoull(size, NULL, 10) & INT64_MAX))
            return false;
        at = stop;
    }
    for (at = text; (value = element(at, end, "CommonPrefixes", &length)); at = value + length) {
        size_t key_length = 0;
        const char *key = element(value, value + length, "Prefix", &key_length);

        if (!key || !add(entries, n, key, key_length, -1))
            return false;
    }
    value = element(text, end, "NextContinuationToken", &length);
    if (value && length < S3_TOKEN_MAX) {
        memcpy(token, value, length);
        token[length] = 0;
        decode(token);
    }
    if (value && length >= S3_TOKEN_MAX)
        return false;
    value = element(text, end, "IsTruncated", &length);
    return token[0] || !value || length != 4 || memcmp(value, "true", 4) != 0;
}

/* The query for a page. Parameters are sorted by name, as they are signed. */
static bool make_query(char query[QUERY_MAX], const char *key, const char *token)
{
    bool ok = true;

    query[0] = 0;
    if (token[0]) {
        snprintf(query, QUERY_MAX, "continuation-token=");
        ok = location_encode(query, QUERY_MAX, token, false);
        ok = ok && strlen(query) + 2 < QUERY_MAX;
        if (ok)
            memcpy(query + strlen(query), "&", 2);
    }
    if (!ok || strlen(query) + 64 > QUERY_MAX)
        return false;
    memcpy(query + strlen(query),
           "delimiter=%2F&list-type=2&prefix=", sizeof "delimiter=%2F&list-type=2&prefix=");
    return location_encode(query, QUERY_MAX, key, false) &&
           (!key[0] || location_encode(query, QUERY_MAX, "/", false));
}

static tp_status list_page(struct folder_entry **entries, int *n, char token[S3_TOKEN_MAX],
                           const char *dir, char *page, struct tp_err *err)
{
    char bucket[LOCATION_BUCKET_MAX], query[QUERY_MAX];
    struct http_reply reply;
    struct remote_request q = { .method = "GET",
                                .path = dir,
                                .query = query,
                                .of_bucket = true,
                                .into = page,
                                .room = PAGE_BYTES - 1,
                                .status = 200 };
    tp_status st;

    if (!make_query(query, location_split(bucket, dir), token))
        return tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", dir);
    st = remote_send(&reply, &q, err);
    if (!st && (reply.status != 200 || reply.too_long)) {
        st = remote_fail(&q, &reply, err);
        if (st == TP_E_NOTFOUND)
            st = TP_OK; /* some stores answer 404 for an empty folder */
        return st;
    }
    if (st)
        return st;
    page[reply.bytes] = 0;
    if (!s3_list_parse(entries, n, token, page))
        return tp_fail(err, TP_E_IO,
                       "%s: what the store answers is no listing, or a part of one without the "
                       "token of the next part",
                       dir);
    return TP_OK;
}

tp_status s3_list(struct folder_entry **entries, int *n, const char *dir, struct tp_err *err)
{
    char token[S3_TOKEN_MAX] = "", before[S3_TOKEN_MAX], *page = malloc(PAGE_BYTES);
    struct folder_entry *found = NULL;
    int count = 0;
    tp_status st = location_check(dir, err);

    if (!st && !page)
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory to list it", dir);
    if (!st)
        do {
            memcpy(before, token, sizeof before);
            st = list_page(&found, &count, token, dir, page, err);
            if (!st && token[0] && strcmp(token, before) == 0)
                st = tp_fail(err, TP_E_IO, "%s: the store sends the same part of the listing again",
                             dir);
        } while (!st && token[0]);
    free(page);
    if (st) {
        free(found);
        return st;
    }
    *entries = found;
    *n = count;
    return TP_OK;
}
