/* storage/remote.c - see storage/remote.h. */
#include "storage/remote.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/stop.h"
#include "storage/location.h"

enum { TRIES_MAX = 12 };

static const double first_pause_s = 0.1, longest_pause_s = 20;
static const double say_after_s = 2, say_again_s = 30; /* of tries that do not succeed */

/* What belongs to the process. */
static struct {
    pthread_mutex_t lock;
    struct remote_settings settings;
    struct http_client *http;
    pid_t owner;                   /* of http */
    struct http_client *inherited; /* a forked process may neither use nor close the connections of
                                      its parent, so it keeps what it cannot free */
    struct aws_config aws;
    bool has_aws;
    bool aws_worked; /* a store has accepted its keys, or those before */
    double said;     /* when a wait was announced; 0: never */
    int64_t sent;    /* bytes of bodies that were accepted */
    atomic_bool tries_stop;
} process = { .lock = PTHREAD_MUTEX_INITIALIZER };

void remote_configure(const struct remote_settings *settings)
{
    pthread_mutex_lock(&process.lock);
    process.settings = *settings;
    process.has_aws = false;
    pthread_mutex_unlock(&process.lock);
}

void remote_tries_stop(bool stop)
{
    atomic_store(&process.tries_stop, stop);
}

int remote_connections(void)
{
    const int n = process.settings.connections;

    return n < 1 ? REMOTE_CONNECTIONS : n < REMOTE_CONNECTIONS_MAX ? n : REMOTE_CONNECTIONS_MAX;
}

int64_t remote_sent_bytes(void)
{
    int64_t n;

    pthread_mutex_lock(&process.lock);
    n = process.sent;
    pthread_mutex_unlock(&process.lock);
    return n;
}

/* After the last try of a request. */
static void count_sent(const struct remote_request_try *t, const struct http_reply *reply)
{
    pthread_mutex_lock(&process.lock);
    process.sent += reply->status == t->q->status ? (int64_t)t->q->body_bytes : 0;
    process.aws_worked = process.aws_worked || (t->aws && reply->status / 100 == 2);
    pthread_mutex_unlock(&process.lock);
}

static double timeout_s(void)
{
    return process.settings.timeout_s > 0 ? process.settings.timeout_s : REMOTE_TIMEOUT_S;
}

static tp_status client(struct http_client **out, struct tp_err *err)
{
    const struct http_client_options options = { process.settings.ca_file, timeout_s() / 4 };
    tp_status st = TP_OK;

    pthread_mutex_lock(&process.lock);
    if (!process.http || process.owner != getpid()) {
        process.inherited = process.http;
        process.http = NULL;
        st = http_client_new(&process.http, &options, err);
        process.owner = getpid();
    }
    *out = process.http;
    pthread_mutex_unlock(&process.lock);
    return st;
}

static tp_status aws(struct aws_config *out, struct tp_err *err)
{
    tp_status st = TP_OK;

    pthread_mutex_lock(&process.lock);
    if (!process.has_aws) {
        st = aws_config_find(&process.aws, &process.settings.aws, err);
        process.has_aws = !st;
    }
    *out = process.aws;
    pthread_mutex_unlock(&process.lock);
    return st;
}

/* Whether other keys may help a request that was refused. */
enum renewal {
    RENEWAL_NONE,
    RENEWAL_NEW,     /* the request has other keys now */
    RENEWAL_AWAITED, /* these were valid earlier, so there may soon be new ones in the files */
};

/* When a store refuses the keys, read the files that they came from again. Of many requests the
 * first one does that, and the others take what it has found. */
static enum renewal renew(struct remote_request_try *t, const struct http_reply *reply)
{
    struct aws_config found = { .endpoint = "" };
    enum renewal renewal;
    char code[HTTP_CODE_MAX];
    struct tp_err ignored; /* a file that is being written */

    if (!t->aws || !t->aws->from_files || reply->status / 100 == 2 ||
        !http_reply_refuses_keys(http_reply_code(code, reply->text)))
        return RENEWAL_NONE;
    pthread_mutex_lock(&process.lock);
    if (aws_config_has_keys_of(&t->own, &process.aws) &&
        aws_config_find(&found, &process.settings.aws, &ignored) == TP_OK) {
        memcpy(found.credentials.region, process.aws.credentials.region,
               sizeof found.credentials.region); /* it is part of the host's name, too */
        process.aws.credentials = found.credentials;
    }
    renewal = !aws_config_has_keys_of(&t->own, &process.aws) ? RENEWAL_NEW
              : process.aws_worked                           ? RENEWAL_AWAITED
                                                             : RENEWAL_NONE;
    t->own = process.aws;
    pthread_mutex_unlock(&process.lock);
    explicit_bzero(&found, sizeof found);
    return renewal;
}

/* ---- replies ---- */

/* Whether the body of a reply 200 is an error. S3 answers 200 first and may find out later that it
 * cannot do what was asked. */
static bool is_error_document(struct http_reply *r, const struct remote_request *q)
{
    size_t n = r->bytes < sizeof r->text ? r->bytes : sizeof r->text - 1;

    if (r->status != 200 || location_kind(q->path) != LOCATION_S3 || r->too_long)
        return false;
    if (q->status != 200)
        return strstr(r->text, "<Error>") != NULL;
    if (!q->into || !memmem(q->into, n, "<Error>", strlen("<Error>")))
        return false;
    memcpy(r->text, q->into, n);
    r->text[n] = 0;
    return true;
}

static const char conflict[] = "ConditionalRequestConflict";

static bool code_is_transient(const char *code)
{
    static const char *const codes[] = { "InternalError",  "SlowDown",   "ServiceUnavailable",
                                         "RequestTimeout", "Throttling", "OperationAborted",
                                         conflict };

    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (strcmp(code, codes[i]) == 0)
            return true;
    return false;
}

/* Explain in `problem` what is wrong with a reply. Whether another try may help. */
static bool explain(struct http_reply *r, const struct remote_request *q)
{
    char code[HTTP_CODE_MAX];

    if (r->status == 0)
        return r->may_retry;
    if (is_error_document(r, q)) {
        http_reply_code(code, r->text);
        snprintf(r->problem, sizeof r->problem, "the server answers 200 with the error '%s'", code);
        r->status = 500;
        return code_is_transient(code);
    }
    if (r->status == q->status && !r->too_long && r->bytes < q->least) {
        snprintf(r->problem, sizeof r->problem, "the server sent %zu bytes, expected %zu", r->bytes,
                 q->least);
        r->status = 0;
        return true;
    }
    if (r->status / 100 == 2)
        return false;
    http_reply_code(code, r->text);
    snprintf(r->problem, sizeof r->problem, "the server answers %ld%s%s%s", r->status,
             code[0] ? " (" : "", code, code[0] ? ")" : "");
    return r->status == 408 || r->status == 429 || (r->status >= 500 && r->status != 501) ||
           ((r->status == 400 || r->status == 409) && code_is_transient(code));
}

tp_status remote_fail(const struct remote_request *q, const struct http_reply *r,
                      struct tp_err *err)
{
    const bool is_s3 = location_kind(q->path) == LOCATION_S3;
    const char *advice = "";
    char code[HTTP_CODE_MAX];

    http_reply_code(code, r->text);
    if ((r->status == 404 || r->status == 410) && strcmp(q->method, "GET") == 0 &&
        strcmp(code, "NoSuchBucket") != 0 && strcmp(code, "NoSuchUpload") != 0)
        return tp_fail(err, TP_E_NOTFOUND, "%s: there is no such object", q->path);
    if (r->status == 412)
        return tp_fail(err, TP_E_IO,
                       "%s: another program replaced it while it was used; it is not damaged; run "
                       "this again",
                       q->path);
    if (is_s3 && r->status / 100 == 3 && isalnum((unsigned char)r->region[0]))
        return tp_fail(err, TP_E_IO, "%s: the bucket is in the region %.*s; set AWS_REGION to it",
                       q->path, (int)strspn(r->region, "abcdefghijklmnopqrstuvwxyz-0123456789"),
                       r->region);
    if (is_s3 && r->status / 100 == 3)
        return tp_fail(err, TP_E_IO,
                       "%s: the store answers %ld: it redirects the request to another host, and "
                       "credentials are not sent there; check AWS_ENDPOINT_URL and AWS_REGION",
                       q->path, r->status);
    if (r->status == 200 && q->status == 206)
        return tp_fail(err, TP_E_IO,
                       "%s: the server does not support ranges (it answers 200 instead of 206), so "
                       "parts of a file cannot be read from it",
                       q->path);
    if (is_s3)
        advice = http_reply_advice(r, code);
    else if (r->status == 401 || r->status == 403)
        advice = "; it is not there, or not public: web servers get no credentials";
    return tp_fail(err, TP_E_IO, "%s: the server answers %ld%s%s%s to %s%s", q->path, r->status,
                   code[0] ? " (" : "", code, code[0] ? ")" : "", q->method, advice);
}

/* ---- trying again ---- */

/* Half of the pause is random, so that many processes do not come back at the same time. */
static double pause_s(int tries, double retry_after_s)
{
    double longest = first_pause_s;
    unsigned char byte = 0;

    for (int i = 1; i < tries && longest < longest_pause_s; i++)
        longest *= 2;
    if (longest > longest_pause_s)
        longest = longest_pause_s;
    if (getrandom(&byte, 1, 0) != 1)
        byte = 128;
    longest *= 0.5 + byte / 510.0;
    return longest > retry_after_s ? longest : retry_after_s;
}

static void sleep_s(double s)
{
    struct timespec t = { .tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9) };

    nanosleep(&t, NULL);
}

/* The pause before another try. TP_E_STOPPED: there shall be none. */
static tp_status pause_for(const struct remote_request *q, const struct http_reply *reply, double s,
                           struct tp_err *err)
{
    const double end = clock_seconds() + s, slice_s = 0.2;
    const bool reads = strcmp(q->method, "GET") == 0, may_stop = reads || q->may_stop;

    for (;;) {
        const double left = end - clock_seconds();

        if (may_stop && atomic_load(&process.tries_stop) && stop_requested())
            return tp_fail(err, TP_E_STOPPED,
                           "%s: interrupted while it could not be %s (%s); run the same command "
                           "again",
                           q->path, reads ? "read" : "written", reply->problem);
        if (left <= 0)
            return TP_OK;
        sleep_s(left < slice_s ? left : slice_s);
    }
}

static tp_status give_up(const struct remote_request *q, const struct http_reply *reply, int tries,
                         double seconds, struct tp_err *err)
{
    char host[128] = "";

    if (location_kind(q->path) == LOCATION_S3 && process.aws.endpoint[0])
        snprintf(host, sizeof host, " (endpoint %.100s)", process.aws.endpoint);
    return tp_fail(err, TP_E_IO, "%s%s: cannot %s: %s; %d tries in %.1f s", q->path, host,
                   strcmp(q->method, "GET") == 0 ? "read" : "write", reply->problem, tries,
                   seconds);
}

/* Of many threads that wait, one says so. */
static void announce(const struct remote_request *q, const struct http_reply *reply, double left_s)
{
    const double now = clock_seconds();
    char sentence[TP_ERR_MAX];
    bool is_due;

    if (!process.settings.notify)
        return;
    pthread_mutex_lock(&process.lock);
    is_due = process.said == 0 || now - process.said > say_again_s;
    if (is_due)
        process.said = now;
    pthread_mutex_unlock(&process.lock);
    if (!is_due)
        return;
    snprintf(sentence, sizeof sentence, "%.400s: %.200s; trying again, for at most %.0f s", q->path,
             reply->problem[0] ? reply->problem : "the server is busy", left_s);
    process.settings.notify(sentence);
}

tp_status remote_send(struct http_reply *reply, const struct remote_request *q, struct tp_err *err)
{
    struct remote_request_try *t = calloc(1, sizeof *t);
    const bool is_s3 = location_kind(q->path) == LOCATION_S3;
    const double begin = clock_seconds(), most_s = q->within_s > 0 ? q->within_s : timeout_s(),
                 limit = most_s + (double)(q->room + q->body_bytes) / HTTP_SLOWEST_BYTES_PER_S;
    double since = begin; /* time in which bytes moved does not count */
    const int most_tries = q->most_tries > 0 ? q->most_tries : TRIES_MAX;
    bool conflicted = false;
    struct http_client *http = NULL;
    tp_status st = TP_OK;

    if (!t)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for a request", q->path);
    TP_TRY(location_check(q->path, err));
    if (is_s3)
        TP_TRY(aws(&t->own, err));
    TP_TRY(remote_request_prepare(t, q, is_s3 ? &t->own : NULL, err));
    TP_TRY(client(&http, err));
    for (int tries = 1;; tries++) {
        enum renewal renewal;
        char code[HTTP_CODE_MAX];
        bool is_transient, is_last;
        double wait;

        TP_TRY(remote_request_sign(t, err));
        http_send(reply, http, &t->http, limit);
        reply->tries = tries;
        since += reply->moving_s;
        is_transient = explain(reply, q);
        conflicted = conflicted || strcmp(http_reply_code(code, reply->text), conflict) == 0;
        reply->conflicted = conflicted;
        renewal = renew(t, reply);
        if (renewal == RENEWAL_NEW) {
            tries--; /* what was refused had no effect */
            continue;
        }
        wait = pause_s(tries, reply->retry_after_s);
        is_last = tries == most_tries || clock_seconds() - since + wait > most_s;
        if (renewal == RENEWAL_AWAITED ? is_last : !is_transient) {
            if (reply->status == 0)
                st = give_up(q, reply, tries, clock_seconds() - begin, err);
            count_sent(t, reply);
            break;
        }
        if (is_last) {
            st = give_up(q, reply, tries, clock_seconds() - begin, err);
            break;
        }
        if (clock_seconds() - since + wait > say_after_s)
            announce(q, reply, since + most_s - clock_seconds());
        TP_TRY(pause_for(q, reply, wait, err));
    }
done:
    if (t)
        explicit_bzero(t, sizeof *t);
    free(t);
    return st;
}
