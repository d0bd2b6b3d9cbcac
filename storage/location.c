/* storage/location.c - see storage/location.h. */
#include "storage/location.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/text.h"

static const char s3_scheme[] = "s3://";

static bool begins(const char *path, const char *with)
{
    return strncmp(path, with, strlen(with)) == 0;
}

enum location_kind location_kind(const char *path)
{
    if (begins(path, s3_scheme))
        return LOCATION_S3;
    return begins(path, "http://") || begins(path, "https://") ? LOCATION_HTTP : LOCATION_LOCAL;
}

bool location_is_remote(const char *path)
{
    return location_kind(path) != LOCATION_LOCAL;
}

static tp_status check_http(const char *path, struct tp_err *err)
{
    const char *host = strstr(path, "://") + 3;
    const size_t n = strcspn(host, "/?#");

    if (memchr(host, '@', n))
        return tp_fail(err, TP_E_USAGE,
                       "the URL has a user or a password, which other users can see in the list of "
                       "processes; give the URL without them");
    if (strpbrk(path, "?#"))
        return tp_fail(err, TP_E_USAGE,
                       "%.*s...: the URL has a query or a fragment; a checkpoint is a folder, so "
                       "give its URL without '?' and '#'",
                       (int)strcspn(path, "?#"), path);
    if (n == 0)
        return tp_fail(err, TP_E_USAGE, "%.200s: the URL has no host", path);
    for (const char *c = path; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 127 || strchr("\"<>\\^`{|}", *c))
            return tp_fail(err, TP_E_USAGE, "the URL has a character that must be written as %%XX");
    return TP_OK;
}

static tp_status check_s3(const char *path, struct tp_err *err)
{
    const char *bucket = path + strlen(s3_scheme);
    const size_t n = strcspn(bucket, "/");

    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)bucket[i]) && !strchr("-._", bucket[i]))
            return tp_fail(err, TP_E_USAGE,
                           "the name of the bucket after s3:// has characters other than letters, "
                           "digits, '-', '.' and '_'; expected s3://BUCKET/PREFIX");
    if (n < 1 || n >= LOCATION_BUCKET_MAX)
        return tp_fail(err, TP_E_USAGE,
                       "%.80s: the name of a bucket has 1 to 63 characters; expected "
                       "s3://BUCKET/PREFIX",
                       path);
    return TP_OK;
}

/* Whether a scheme of n characters is one that can be used, in any case. */
static bool is_known_scheme(const char *scheme, size_t n)
{
    static const char *const known[] = { "s3", "http", "https" };

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i]) == n && strncasecmp(scheme, known[i], n) == 0)
            return true;
    return false;
}

/* A URL of another kind, or one that is misspelt, is not a name of a local folder: what is written
 * there would not be where the user expects it. */
static tp_status check_scheme(const char *path, struct tp_err *err)
{
    size_t n = 0;

    while (isalnum((unsigned char)path[n]) || (path[n] && strchr("+.-", path[n])))
        n++;
    if (n == 0 || path[n] != ':')
        return TP_OK;
    if (is_known_scheme(path, n))
        return tp_fail(err, TP_E_USAGE,
                       "%.*s:...: a URL begins with s3://, https:// or http://, in lower case and "
                       "with two slashes; for a local folder of this name write ./%.*s:...",
                       (int)n, path, (int)n, path);
    if (strncmp(path + n, "://", 3) != 0)
        return TP_OK;
    return tp_fail(
        err, TP_E_USAGE,
        "%.*s://...: URLs of this kind cannot be used; expected a folder, https://HOST/PATH, "
        "http://HOST/PATH or s3://BUCKET/PREFIX",
        (int)(n < 40 ? n : 40), path);
}

tp_status location_check(const char *path, struct tp_err *err)
{
    switch (location_kind(path)) {
    case LOCATION_HTTP:
        return check_http(path, err);
    case LOCATION_S3:
        return check_s3(path, err);
    default:
        return check_scheme(path, err);
    }
}

tp_status location_clean(char out[PATH_MAX], const char *path, struct tp_err *err)
{
    const size_t n = text_path_length(path);
    tp_status st = location_check(path, err);

    if (st)
        return st;
    if (n == 0)
        return tp_fail(err, TP_E_USAGE, "the path of the checkpoint is empty");
    if (n >= PATH_MAX)
        return tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", path);
    memcpy(out, path, n);
    out[n] = 0;
    return TP_OK;
}

tp_status location_check_local(const char *path, struct tp_err *err)
{
    tp_status st = location_check(path, err);

    if (st || !location_is_remote(path))
        return st;
    if (location_kind(path) == LOCATION_HTTP)
        return tp_fail(err, TP_E_USAGE,
                       "%.400s: from a web server checkpoints are only read; name a folder, or "
                       "s3://BUCKET/PREFIX",
                       path);
    return tp_fail(err, TP_E_USAGE, "%.400s: this is done in local folders only; name a folder",
                   path);
}

const char *location_split(char bucket[LOCATION_BUCKET_MAX], const char *path)
{
    const char *begin = path + strlen(s3_scheme);
    const size_t n = strcspn(begin, "/");

    snprintf(bucket, LOCATION_BUCKET_MAX, "%.*s", (int)n, begin);
    return begin[n] ? begin + n + 1 : begin + n;
}

bool location_encode(char *out, size_t size, const char *text, bool keep_slash)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t n = strlen(out);

    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        const bool plain = (c < 128 && isalnum(c)) || strchr("-._~", c) || (keep_slash && c == '/');

        if (n + 4 > size)
            return false;
        if (plain) {
            out[n++] = (char)c;
        } else {
            out[n++] = '%';
            out[n++] = digits[c >> 4];
            out[n++] = digits[c & 15];
        }
    }
    out[n] = 0;
    return true;
}
