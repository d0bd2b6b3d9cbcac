/* storage/remote_request.c - see storage/remote_request.h. */
#include "storage/remote_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/text.h"

/* Whether the bucket can be the first label of Amazon's host name: not with dots, for which
 * certificates of *.amazonaws.com are not valid, nor with the capital letters and '_' of old
 * buckets. */
static bool is_host_label(const char *bucket)
{
    const size_t n = strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-");

    return n > 0 && !bucket[n] && bucket[0] != '-' && bucket[n - 1] != '-';
}

/* The regions of China have a domain of their own. */
static const char *domain_of(const char *region)
{
    return strncmp(region, "cn-", 3) == 0 ? "amazonaws.com.cn" : "amazonaws.com";
}

/* The host and the encoded path of a request to S3. With an endpoint, and when it is no label of a
 * host, the bucket is part of the path. */
static tp_status address(struct remote_request_try *t, const struct aws_config *aws,
                         struct tp_err *err)
{
    char bucket[LOCATION_BUCKET_MAX];
    const char *key = location_split(bucket, t->q->path), *scheme = "https://", *host;
    bool in_path = aws->endpoint[0] || !is_host_label(bucket);
    int n = 0;

    if (aws->endpoint[0]) {
        host = strstr(aws->endpoint, "://") + 3;
        scheme = strncmp(aws->endpoint, "https", 5) == 0 ? "https://" : "http://";
        n = snprintf(t->host, sizeof t->host, "%s", host);
    } else {
        n = snprintf(t->host, sizeof t->host, "%s%ss3.%s.%s", in_path ? "" : bucket,
                     in_path ? "" : ".", aws->credentials.region,
                     domain_of(aws->credentials.region));
    }
    snprintf(t->path, sizeof t->path, "/%s%s", in_path ? bucket : "",
             in_path && !t->q->of_bucket ? "/" : "");
    if (n >= (int)sizeof t->host ||
        (!t->q->of_bucket && !location_encode(t->path, sizeof t->path, key, true)) ||
        snprintf(t->url, sizeof t->url, "%s%s%s%s%s", scheme, t->host, t->path,
                 t->q->query ? "?" : "", t->q->query ? t->q->query : "") >= (int)sizeof t->url)
        return tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", t->q->path);
    return TP_OK;
}

tp_status remote_request_prepare(struct remote_request_try *t, const struct remote_request *q,
                                 const struct aws_config *aws, struct tp_err *err)
{
    tp_status st = TP_OK;

    t->q = q;
    t->aws = aws;
    t->http = (struct http_request){ .method = q->method,
                                     .url = q->path,
                                     .once = q->once,
                                     .body = q->body,
                                     .body_bytes = q->body_bytes,
                                     .into = q->into,
                                     .room = q->room,
                                     .status = q->status };
    if (aws) {
        TP_TRY(address(t, aws, err));
        TP_TRY(sigv4_hash(t->hash, q->body ? q->body : "", q->body_bytes, err));
        t->http.url = t->url;
    } else {
        t->http.follow = true;
        for (int i = 0; i < q->n_headers; i++)
            t->http.headers[t->http.n_headers++] = q->headers[i];
    }
done:
    return st;
}

/* The headers that libcurl adds itself (user-agent, accept) are not signed. */
tp_status remote_request_sign(struct remote_request_try *t, struct tp_err *err)
{
    const struct aws_config *aws = t->aws;
    struct sigv4_request r = { .method = t->q->method,
                               .path = t->path,
                               .query = t->q->query ? t->q->query : "",
                               .payload_sha256 = t->hash };
    char *authorization = t->authorization_line;
    int n = snprintf(authorization, sizeof t->authorization_line, "authorization: ");
    tp_status st;

    if (!aws)
        return TP_OK;
    sigv4_date(t->date, time(NULL));
    snprintf(t->host_line, sizeof t->host_line, "host: %s", t->host);
    snprintf(t->date_line, sizeof t->date_line, "x-amz-date: %s", t->date);
    snprintf(t->hash_line, sizeof t->hash_line, "x-amz-content-sha256: %s", t->hash);
    snprintf(t->token_line, sizeof t->token_line, "x-amz-security-token: %s",
             aws->credentials.token);
    r.headers[r.n_headers++] = t->host_line;
    r.headers[r.n_headers++] = t->hash_line;
    r.headers[r.n_headers++] = t->date_line;
    if (aws->credentials.token[0])
        r.headers[r.n_headers++] = t->token_line;
    for (int i = 0; i < t->q->n_headers; i++)
        r.headers[r.n_headers++] = t->q->headers[i];
    qsort(r.headers, (size_t)r.n_headers, sizeof *r.headers, text_compare);
    st = sigv4_sign(authorization + n, &r, &aws->credentials, t->date, err);
    memcpy(t->http.headers, r.headers, sizeof r.headers);
    t->http.n_headers = r.n_headers;
    t->http.headers[t->http.n_headers++] = authorization;
    return st;
}
