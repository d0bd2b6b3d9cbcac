/* orchestrator/web/webhook.c - see orchestrator/web/webhook.h. */
#include "orchestrator/web/webhook.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"

enum { QUEUE = 32, TRIES = 3, TIMEOUT_S = 10 };
static const double PAUSE_S = 1; /* before another try, because a receiver may be restarting */

struct webhook {
    CURLM *multi;
    CURL *easy;
    struct curl_slist *headers;
    char *queue[QUEUE]; /* the first one is being sent */
    int n, tries;
    bool busy;
    double next_at;            /* earliest time of the next try */
    char where[128], why[256]; /* the URL's host, because its path may be a secret; an error */
    bool failed;               /* the last event could not be sent */
    int lost;                  /* events that could not be sent, and were not reported */
    bool must_report;          /* report them now */
};

static size_t swallow(char *data, size_t size, size_t n, void *ctx)
{
    (void)data;
    (void)ctx;
    return size * n;
}

/* Check a URL as curl will read it. where: gets its host. */
static tp_status check_url(char *where, size_t size, const char *url, struct tp_err *err)
{
    CURLU *u = curl_url();
    CURLUcode code = u ? curl_url_set(u, CURLUPART_URL, url, 0) : CURLUE_OUT_OF_MEMORY;
    char *host = NULL;
    tp_status st = TP_OK;

    if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0)
        st = tp_fail(err, TP_E_USAGE, "webhook: \"%s\" is not an http or https URL", url);
    else if (code == CURLUE_OK)
        code = curl_url_get(u, CURLUPART_HOST, &host, 0);
    if (st == TP_OK && (code != CURLUE_OK || !host[0]))
        st = tp_fail(err, TP_E_USAGE, "webhook: \"%s\" is not a URL: %s", url,
                     curl_url_strerror(code));
    snprintf(where, size, "%s", host ? host : "");
    curl_free(host);
    curl_url_cleanup(u);
    return st;
}

tp_status webhook_open(struct webhook **out, const char *url, struct tp_err *err)
{
    struct webhook *w;
    char where[sizeof w->where];
    tp_status st;

    *out = NULL;
    if (!url || !url[0])
        return TP_OK;
    if ((st = check_url(where, sizeof where, url, err)))
        return st;
    w = calloc(1, sizeof *w);
    if (!w || curl_global_init(CURL_GLOBAL_DEFAULT) || !(w->multi = curl_multi_init()) ||
        !(w->easy = curl_easy_init())) {
        free(w);
        return tp_fail(err, TP_E_NOMEM, "no memory for the webhook");
    }
    w->headers = curl_slist_append(NULL, "Content-Type: application/json");
    memcpy(w->where, where, sizeof w->where);
    curl_easy_setopt(w->easy, CURLOPT_URL, url);
    curl_easy_setopt(w->easy, CURLOPT_HTTPHEADER, w->headers);
    curl_easy_setopt(w->easy, CURLOPT_WRITEFUNCTION, swallow);
    curl_easy_setopt(w->easy, CURLOPT_TIMEOUT, (long)TIMEOUT_S);
    curl_easy_setopt(w->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(w->easy, CURLOPT_QUICK_EXIT, 1L); /* do not join a thread that waits for DNS */
    curl_easy_setopt(w->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(w->easy, CURLOPT_USERAGENT, "tp-run/" TP_VERSION);
    *out = w;
    return TP_OK;
}

/* Events are lost. The first failure is reported at once, further ones when it is over. */
static void lose(struct webhook *w, int n)
{
    w->lost += n;
    w->must_report = w->must_report || !w->failed;
    w->failed = true;
}

void webhook_post(struct webhook *w, const json_t *event)
{
    char *text = w && w->n < QUEUE ? json_dumps(event, JSON_COMPACT) : NULL;

    if (text) {
        w->queue[w->n++] = text;
    } else if (w) {
        snprintf(w->why, sizeof w->why, "it is too slow: %d events wait to be sent", w->n);
        lose(w, 1);
    }
    webhook_tick(w);
}

static void drop_first(struct webhook *w)
{
    free(w->queue[0]);
    memmove(w->queue, w->queue + 1, (size_t)(w->n - 1) * sizeof w->queue[0]);
    w->n--;
    w->tries = 0;
}

static void begin(struct webhook *w)
{
    curl_easy_setopt(w->easy, CURLOPT_POSTFIELDSIZE, (long)strlen(w->queue[0]));
    curl_easy_setopt(w->easy, CURLOPT_COPYPOSTFIELDS, w->queue[0]);
    curl_multi_add_handle(w->multi, w->easy);
    w->busy = true;
    w->tries++;
}

/* A try has ended. Answers 3xx and 4xx say that the address is wrong, so a further try does not
 * help. A redirection is not followed: the event would go to a host that nobody has named. */
static void conclude(struct webhook *w, CURLcode result, long code)
{
    bool sent = result == CURLE_OK && code >= 200 && code < 300;

    if (!sent && (result != CURLE_OK || code >= 500) && w->tries < TRIES) {
        w->next_at = clock_seconds() + PAUSE_S;
        return;
    }
    if (!sent && result == CURLE_OK)
        snprintf(w->why, sizeof w->why, "it answers with HTTP %ld", code);
    else if (!sent)
        snprintf(w->why, sizeof w->why, "%s", curl_easy_strerror(result));
    if (sent) {
        w->must_report = w->lost > 0;
        w->failed = false;
    } else {
        lose(w, 1);
    }
    drop_first(w);
}

bool webhook_failed(char *text, size_t size, int *lost, struct webhook *w)
{
    if (!w || !w->must_report)
        return false;
    snprintf(text, size, "%.120s: %s", w->where, w->why);
    *lost = w->lost;
    w->lost = 0;
    w->must_report = false;
    return true;
}

void webhook_tick(struct webhook *w)
{
    int running, left;
    CURLMsg *m;

    if (!w)
        return;
    if (!w->busy && w->n > 0 && clock_seconds() >= w->next_at)
        begin(w);
    curl_multi_perform(w->multi, &running);
    while ((m = curl_multi_info_read(w->multi, &left))) {
        long code = 0;

        if (m->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(w->easy, CURLINFO_RESPONSE_CODE, &code);
        conclude(w, m->data.result, code);
        curl_multi_remove_handle(w->multi, w->easy);
        w->busy = false;
    }
}

void webhook_wait(struct webhook *w, double seconds)
{
    const struct timespec wait = { .tv_nsec = 20 * 1000 * 1000 }; /* fifty times a second */

    for (int i = 0; w && i < (int)(seconds * 50) && w->n > 0; i++) {
        webhook_tick(w);
        nanosleep(&wait, NULL);
    }
    if (w && w->n > 0) {
        if (!w->failed)
            snprintf(w->why, sizeof w->why, "%d events could not be sent before tp-run ended",
                     w->n);
        lose(w, w->n);
    }
    if (w)
        w->must_report = w->lost > 0;
}

void webhook_close(struct webhook *w)
{
    if (!w)
        return;
    if (w->busy)
        curl_multi_remove_handle(w->multi, w->easy);
    while (w->n > 0)
        drop_first(w);
    curl_easy_cleanup(w->easy);
    curl_multi_cleanup(w->multi);
    curl_slist_free_all(w->headers);
    curl_global_cleanup();
    free(w);
}
