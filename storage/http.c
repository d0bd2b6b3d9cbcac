/* storage/http.c - see storage/http.h. */
#include "storage/http.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

enum { IDLE_MAX = 64, REDIRECTS_MAX = 5, CONNECT_S = 10 };
enum { BUFFER_BYTES = 256 << 10 };

struct http_client {
    struct http_client_options options;
    pthread_mutex_t lock;
    CURL *idle[IDLE_MAX]; /* with their connections */
    int n_idle;
};

/* One exchange. */
struct http_exchange {
    const struct http_request *q;
    struct http_reply *reply;
    CURL *curl;
    double begin;
    curl_off_t moved; /* bytes of both bodies */
    bool refused;     /* the body of a reply was not wanted */
};

tp_status http_client_new(struct http_client **out, const struct http_client_options *options,
                          struct tp_err *err)
{
    struct http_client *c = calloc(1, sizeof *c);

    if (!c || curl_global_init(CURL_GLOBAL_DEFAULT)) {
        free(c);
        return tp_fail(err, TP_E_NOMEM, "no memory for HTTP connections");
    }
    c->options = *options;
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return TP_OK;
}

static CURL *take(struct http_client *c)
{
    CURL *h = NULL;

    pthread_mutex_lock(&c->lock);
    if (c->n_idle > 0)
        h = c->idle[--c->n_idle];
    pthread_mutex_unlock(&c->lock);
    return h ? h : curl_easy_init();
}

static void give_back(struct http_client *c, CURL *h)
{
    curl_easy_reset(h); /* keeps connections and TLS sessions, and forgets headers */
    pthread_mutex_lock(&c->lock);
    if (c->n_idle < IDLE_MAX) {
        c->idle[c->n_idle++] = h;
        h = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    curl_easy_cleanup(h);
}

/* ---- the reply ---- */

static size_t on_header(char *line, size_t size, size_t count, void *ctx)
{
    struct http_exchange *x = ctx;

    http_reply_header(x->reply, line, size * count);
    return size * count;
}

static size_t on_body(char *data, size_t size, size_t count, void *ctx)
{
    struct http_exchange *x = ctx;
    struct http_reply *r = x->reply;
    size_t n = size * count, room;
    long status = 0;

    curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status == x->q->status) {
        if (n > x->q->room - r->bytes) {
            r->too_long = true;
            return CURL_WRITEFUNC_ERROR;
        }
        memcpy((char *)x->q->into + r->bytes, data, n);
        r->bytes += n;
        return n;
    }
    room = sizeof r->text - 1 - r->text_bytes;
    memcpy(r->text + r->text_bytes, data, n < room ? n : room);
    r->text_bytes += n < room ? n : room;
    r->text[r->text_bytes] = 0;
    if (n > room && status / 100 == 2) { /* the whole object instead of a range: do not fetch it */
        x->refused = true;
        return CURL_WRITEFUNC_ERROR;
    }
    return n;
}

/* Note when bytes move. */
static int on_progress(void *ctx, curl_off_t down_all, curl_off_t down, curl_off_t up_all,
                       curl_off_t up)
{
    struct http_exchange *x = ctx;

    (void)down_all;
    (void)up_all;
    if (down + up > x->moved) {
        x->moved = down + up;
        x->reply->moving_s = clock_seconds() - x->begin;
    }
    return 0;
}

/* Whether another try may have another outcome. */
static bool may_retry(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_WEIRD_SERVER_REPLY:
        return true;
    default:
        return false;
    }
}

/* ---- the request ---- */

static void set_options(CURL *h, const struct http_client *c, const struct http_request *q,
                        double limit_s)
{
    const double stall_s = c->options.stall_s < 1 ? 1 : c->options.stall_s;

    curl_easy_setopt(h, CURLOPT_URL, q->url);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_REDIR_PROTOCOLS_STR,
                     strncmp(q->url, "https", 5) == 0 ? "https" : "http,https");
    curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, q->follow ? 1L : 0L);
    curl_easy_setopt(h, CURLOPT_MAXREDIRS, (long)REDIRECTS_MAX);
    curl_easy_setopt(h, CURLOPT_PATH_AS_IS, 1L); /* what was signed is what is sent */
    curl_easy_setopt(h, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(h, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (c->options.ca_file && c->options.ca_file[0])
        curl_easy_setopt(h, CURLOPT_CAINFO, c->options.ca_file);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "tp/" TP_VERSION);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, stall_s < CONNECT_S ? (long)stall_s : CONNECT_S);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, (long)HTTP_SLOWEST_BYTES_PER_S);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, (long)stall_s);
    curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, (long)(limit_s * 1000));
    curl_easy_setopt(h, CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
    curl_easy_setopt(h, CURLOPT_FRESH_CONNECT, q->once ? 1L : 0L);
    curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, q->method);
    if (q->body) {
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, q->body);
        curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body_bytes);
    }
}

static bool append(struct curl_slist **list, const char *line)
{
    struct curl_slist *more = curl_slist_append(*list, line);

    if (more)
        *list = more;
    return more != NULL;
}

static struct curl_slist *header_list(const struct http_request *q)
{
    struct curl_slist *list = NULL;
    bool ok = true;

    for (int i = 0; i < q->n_headers; i++)
        ok = ok && append(&list, q->headers[i]);
    if (q->body) /* else libcurl says that it is a form, and waits for the server's leave to send it
                  */
        ok = ok && append(&list, "content-type: application/octet-stream") &&
             append(&list, "expect:");
    if (!ok) {
        curl_slist_free_all(list);
        return NULL;
    }
    return list;
}

static void explain(struct http_exchange *x, CURLcode code)
{
    struct http_reply *r = x->reply;
    long redirects = 0;

    if (x->refused)
        return; /* there is a reply, and its status says what it is */
    if (code == CURLE_OK || r->too_long)
        return;
    r->status = 0;
    r->may_retry = may_retry(code);
    curl_easy_getinfo(x->curl, CURLINFO_REDIRECT_COUNT, &redirects);
    if (code == CURLE_PEER_FAILED_VERIFICATION)
        snprintf(
            r->problem, sizeof r->problem,
            "the server's certificate is not valid for this host, or no known authority has signed "
            "it; if it is your own, name its authority in AWS_CA_BUNDLE or CURL_CA_BUNDLE");
    else if (code == CURLE_UNSUPPORTED_PROTOCOL && redirects == 0)
        snprintf(r->problem, sizeof r->problem,
                 "the server's answer is not HTTP; if it uses TLS, write https://");
    else if (code == CURLE_UNSUPPORTED_PROTOCOL)
        snprintf(r->problem, sizeof r->problem,
                 "the server redirects to another kind of URL; from https:// only https:// is "
                 "followed");
    else
        snprintf(r->problem, sizeof r->problem, "%s", curl_easy_strerror(code));
}

void http_send(struct http_reply *reply, struct http_client *c, const struct http_request *q,
               double limit_s)
{
    struct http_exchange x = { .q = q, .reply = reply, .curl = take(c) };
    struct curl_slist *headers = header_list(q);
    CURLcode code;

    http_reply_begin(reply);
    if (!x.curl || (!headers && (q->n_headers > 0 || q->body))) {
        snprintf(reply->problem, sizeof reply->problem, "there is no memory for a connection");
        curl_easy_cleanup(x.curl);
        return;
    }
    x.begin = clock_seconds();
    set_options(x.curl, c, q, limit_s);
    curl_easy_setopt(x.curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(x.curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(x.curl, CURLOPT_HEADERDATA, &x);
    curl_easy_setopt(x.curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(x.curl, CURLOPT_WRITEDATA, &x);
    curl_easy_setopt(x.curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(x.curl, CURLOPT_XFERINFODATA, &x);
    curl_easy_setopt(x.curl, CURLOPT_NOPROGRESS, 0L);
    code = curl_easy_perform(x.curl);
    curl_easy_getinfo(x.curl, CURLINFO_RESPONSE_CODE, &reply->status);
    explain(&x, code);
    curl_slist_free_all(headers);
    give_back(c, x.curl);
}
