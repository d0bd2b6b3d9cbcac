/* storage/http_reply.c - see storage/http_reply.h. */
#include "storage/http_reply.h"

#include <ctype.h>
#include <curl/curl.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "core/text.h"

void http_reply_begin(struct http_reply *r)
{
    *r = (struct http_reply){ .first = -1, .last = -1, .total = -1 };
}

/* Copy the value of the header `name` when this line is that header. */
static bool header_value(char out[HTTP_VALUE_MAX], const char *line, size_t n, const char *name)
{
    const size_t length = strlen(name);
    size_t begin = length + 1, end = n;

    if (n <= length || line[length] != ':' || strncasecmp(line, name, length) != 0)
        return false;
    while (begin < end && (line[begin] == ' ' || line[begin] == '\t'))
        begin++;
    while (end > begin && (unsigned char)line[end - 1] <= ' ')
        end--;
    if (end - begin >= HTTP_VALUE_MAX)
        return false;
    for (size_t i = begin; i < end; i++)
        if (!isprint((unsigned char)line[i]))
            return false;
    memcpy(out, line + begin, end - begin);
    out[end - begin] = 0;
    return true;
}

/* Take decimal digits from *at. -1: there are none, or too many. */
static int64_t take_number(const char **at)
{
    int64_t n = isdigit((unsigned char)**at) ? 0 : -1;

    for (; isdigit((unsigned char)**at); ++*at)
        n = n < 0 || n > (INT64_MAX - 9) / 10 ? -1 : 10 * n + (**at - '0');
    return n;
}

/* Seconds from now on that a value of Retry-After says: their number, or a date. 0: neither. */
static double retry_after(const char *value)
{
    const char *at = value;
    const int64_t seconds = take_number(&at);
    const time_t date = isalpha((unsigned char)*value) ? curl_getdate(value, NULL) : -1;
    const double wait = date < 0 ? 0 : difftime(date, time(NULL));

    if (seconds >= 0 && !*at)
        return (double)seconds;
    return wait > 0 ? wait : 0;
}

/* "bytes 0-9/100", with "*" for the numbers that the server does not know. One that contradicts
 * itself is none. */
static void parse_range(struct http_reply *r, const char *value)
{
    int64_t first = -1, last = -1, total = -1;

    if (strncmp(value, "bytes ", 6) != 0)
        return;
    value += 6;
    if (*value == '*') {
        value++;
    } else {
        first = take_number(&value);
        if (first < 0 || *value++ != '-')
            return;
        last = take_number(&value);
        if (last < first)
            return;
    }
    if (*value++ != '/')
        return;
    if (*value != '*' && ((total = take_number(&value)) < 0 || total <= last))
        return;
    r->first = first;
    r->last = last;
    r->total = total;
}

void http_reply_header(struct http_reply *r, const char *line, size_t n)
{
    char value[HTTP_VALUE_MAX] = "";

    if (n > 5 && strncmp(line, "HTTP/", 5) == 0) {
        r->etag[0] = r->region[0] = 0;
        r->first = r->last = r->total = -1;
        r->retry_after_s = 0;
    } else if (header_value(value, line, n, "content-range")) {
        parse_range(r, value);
    } else if (header_value(value, line, n, "retry-after")) {
        r->retry_after_s = retry_after(value);
    } else if (header_value(value, line, n, "x-amz-bucket-region")) {
        memcpy(r->region, value, sizeof value);
    } else if (header_value(value, line, n, "etag")) {
        memcpy(r->etag, value, sizeof value);
    }
}

const char *http_reply_code(char out[HTTP_CODE_MAX], const char *text)
{
    const char *begin = strstr(text, "<Code>");
    size_t n = 0;

    if (begin)
        for (begin += strlen("<Code>"); n < HTTP_CODE_MAX - 1 && isalnum((unsigned char)begin[n]);
             n++)
            out[n] = begin[n];
    out[n] = 0;
    return out;
}

const char *http_reply_advice(const struct http_reply *r, const char *code)
{
    static const char expired[] = "; the credentials have expired: get new ones";
    static const char unknown[] = "; the store does not know these credentials";
    static const struct {
        const char *code, *advice;
    } known[] = {
        { "ExpiredToken", expired },
        { "ExpiredTokenException", expired },
        { "RequestExpired", expired },
        { "TokenRefreshRequired", expired },
        { "RequestTimeTooSkewed", "; the clock of this machine is wrong" },
        { "SignatureDoesNotMatch",
          "; the secret access key is wrong, or a proxy changed the request" },
        { "InvalidAccessKeyId", unknown },
        { "InvalidToken", unknown },
        { "NoSuchUpload", "; another program has ended this upload" },
        { "NoSuchBucket", "; there is no such bucket" },
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(code, known[i].code) == 0)
            return known[i].advice;
    if (r->status == 401 || r->status == 403)
        return "; check that these credentials may do this";
    if (r->status == 404)
        return "; check AWS_ENDPOINT_URL, and whether the store allows keys like this one";
    return strcmp(code, "AuthorizationHeaderMalformed") == 0 ? "; check AWS_REGION" : "";
}

bool http_reply_refuses_keys(const char *code)
{
    static const char *const codes[] = { "ExpiredToken",         "ExpiredTokenException",
                                         "TokenRefreshRequired", "InvalidToken",
                                         "InvalidAccessKeyId",   NULL };

    return text_is_one_of(code, codes);
}
