/* orchestrator/web/webhook.c - see orchestrator/web/webhook.h. */
#include "orchestrator/web/webhook.h"

#include <curl/curl.h>
#include <stdbool.h>
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
    double next_at; /* earliest time of the next try */
};

static size_t swallow(char *data, size_t size, size_t n, void *ctx)
{
    (void)data;
    (void)ctx;
    return size * n;
}

tp_status webhook_open(struct webhook **out, const char *url, struct tp_err *err)
{
    struct webhook *w;

    *out = NULL;
    if (!url || !url[0])
        return TP_OK;
    if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0)
        return tp_fail(err, TP_E_USAGE, "webhook: \"%s\" is not an http or https URL", url);
    w = calloc(1, sizeof *w);
    if (!w || curl_global_init(CURL_GLOBAL_DEFAULT) || !(w->multi = curl_multi_init()) ||
        !(w->easy = curl_easy_init())) {
        free(w);
        return tp_fail(err, TP_E_NOMEM, "no memory for the webhook");
    }
    w->headers = curl_slist_append(NULL, "Content-Type: application/json");
    curl_easy_setopt(w->easy, CURLOPT_URL, url);
    curl_easy_setopt(w->easy, CURLOPT_HTTPHEADER, w->headers);
    curl_easy_setopt(w->easy, CURLOPT_WRITEFUNCTION, swallow);
    curl_easy_setopt(w->easy, CURLOPT_TIMEOUT, (long)TIMEOUT_S);
    curl_easy_setopt(w->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(w->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(w->easy, CURLOPT_USERAGENT, "tp-run/" TP_VERSION);
    *out = w;
    return TP_OK;
}

void webhook_post(struct webhook *w, const json_t *event)
{
    char *text = w && w->n < QUEUE ? json_dumps(event, JSON_COMPACT) : NULL;

    if (text)
        w->queue[w->n++] = text;
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
        if ((m->data.result == CURLE_OK && code < 500) || w->tries >= TRIES)
            drop_first(w);
        else
            w->next_at = clock_seconds() + PAUSE_S;
        curl_multi_remove_handle(w->multi, w->easy);
        w->busy = false;
    }
}

void webhook_close(struct webhook *w, double seconds)
{
    const struct timespec wait = { .tv_nsec = 20 * 1000 * 1000 }; /* fifty times a second */

    if (!w)
        return;
    for (int i = 0; i < (int)(seconds * 50) && w->n > 0; i++) {
        webhook_tick(w);
        nanosleep(&wait, NULL);
    }
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
