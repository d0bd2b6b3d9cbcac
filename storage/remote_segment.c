/* storage/remote_segment.c - see storage/remote_segment.h. */
#include "storage/remote_segment.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storage/remote.h"

/* A segment that was used so lately may be used again, by another thread. */
enum { USES_RECENT = 8 };

static struct remote_segments process = { .lock = PTHREAD_MUTEX_INITIALIZER,
                                          .work = PTHREAD_COND_INITIALIZER,
                                          .done = PTHREAD_COND_INITIALIZER,
                                          .limit = REMOTE_SEGMENTS_BYTES };

struct remote_segments *segments_of_process(void)
{
    pthread_mutex_lock(&process.lock);
    if (process.owner != getpid()) { /* the parent's threads do not exist here */
        process.first = NULL;
        process.bytes = 0;
        process.n_objects = process.n_threads = process.n_idle = 0;
        process.owner = getpid();
    }
    pthread_mutex_unlock(&process.lock);
    return &process;
}

struct remote_segment *segments_find(const struct remote_segments *s, const struct remote_object *o,
                                     int64_t offset)
{
    for (struct remote_segment *x = s->first; x; x = x->next)
        if (x->object == o && offset >= x->begin && offset < x->begin + x->n)
            return x;
    return NULL;
}

void segments_remove(struct remote_segments *s, struct remote_segment *segment)
{
    for (struct remote_segment **at = &s->first; *at; at = &(*at)->next)
        if (*at == segment) {
            *at = segment->next;
            break;
        }
    s->bytes -= segment->n;
    free(segment->data);
    free(segment);
}

/* ---- fetching ---- */

/* What a reply with the right status may still have wrong. */
static tp_status check_reply(const struct remote_segment *g, const struct http_reply *r,
                             struct tp_err *err)
{
    const struct remote_object *o = g->object;

    if (o->etag[0] && r->etag[0] && strcmp(o->etag, r->etag) != 0)
        return tp_fail(err, TP_E_IO,
                       "%s: another program replaced it while it was read (its ETag has changed); "
                       "it is not damaged; run this again",
                       o->path);
    if (r->first != g->begin || r->last != g->begin + g->n - 1 || r->total != o->size ||
        r->too_long)
        return tp_fail(
            err, TP_E_IO,
            "%s: the server answers with the bytes %lld to %lld of %lld; %lld to %lld of "
            "%lld were requested",
            o->path, (long long)r->first, (long long)r->last, (long long)r->total,
            (long long)g->begin, (long long)(g->begin + g->n - 1), (long long)o->size);
    return TP_OK;
}

static tp_status fetch(struct remote_segment *g, struct tp_err *err)
{
    char range[80], match[HTTP_VALUE_MAX + 16];
    struct remote_request q = { .method = "GET",
                                .path = g->object->path,
                                .headers = { range },
                                .n_headers = 1,
                                .status = 206,
                                .room = (size_t)g->n,
                                .least = (size_t)g->n };
    struct http_reply reply;
    tp_status st;

    snprintf(range, sizeof range, "range: bytes=%lld-%lld", (long long)g->begin,
             (long long)(g->begin + g->n - 1));
    if (g->object->etag[0] == '"') { /* weak ones cannot be conditions of a range */
        snprintf(match, sizeof match, "if-match: %s", g->object->etag);
        q.headers[q.n_headers++] = match;
    }
    g->data = malloc((size_t)g->n);
    if (!g->data)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", g->object->path);
    q.into = g->data;
    st = remote_send(&reply, &q, err);
    if (st)
        return st;
    if (reply.status == 206)
        return check_reply(g, &reply, err);
    if (reply.status == 404 || reply.status == 410 || reply.status == 416)
        return tp_fail(err, TP_E_IO,
                       "%s: another program removed or replaced it while it was read; it is not "
                       "damaged; run this again",
                       g->object->path);
    return remote_fail(&q, &reply, err);
}

/* The segment to fetch next: one that a reader waits for, if there is one. */
static struct remote_segment *next_to_fetch(const struct remote_segments *s)
{
    struct remote_segment *found = NULL;

    for (struct remote_segment *x = s->first; x; x = x->next) {
        if (x->state != SEGMENT_WAITING)
            continue;
        if (!found || (x->users > 0) > (found->users > 0) ||
            ((x->users > 0) == (found->users > 0) && x->used_at < found->used_at))
            found = x;
    }
    return found;
}

static void *run_thread(void *ctx)
{
    struct remote_segments *s = ctx;
    struct remote_segment *g;

    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        struct tp_err err = { 0 };
        tp_status st;

        g = next_to_fetch(s);
        if (!g) {
            s->n_idle++;
            pthread_cond_wait(&s->work, &s->lock);
            s->n_idle--;
            continue;
        }
        g->state = SEGMENT_LOADING;
        pthread_mutex_unlock(&s->lock);
        st = fetch(g, &err);
        pthread_mutex_lock(&s->lock);
        g->state = st ? SEGMENT_FAILED : SEGMENT_READY;
        g->err = err;
        pthread_cond_broadcast(&s->done);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* One more thread, when more segments wait than threads and more may be. Signals are for the
 * threads of the program.
 */
static bool start_thread(struct remote_segments *s)
{
    sigset_t all, before;
    int failed, waiting = 1;

    for (const struct remote_segment *x = s->first; x; x = x->next)
        waiting += x->state == SEGMENT_WAITING;
    if (s->n_idle >= waiting || s->n_threads >= remote_connections())
        return s->n_threads > 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&s->threads[s->n_threads], NULL, run_thread, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        s->n_threads++;
    return s->n_threads > 0;
}

void segments_end_threads(struct remote_segments *s)
{
    s->stop = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_threads; i++)
        pthread_join(s->threads[i], NULL);
    pthread_mutex_lock(&s->lock);
    s->n_threads = 0;
    s->stop = false;
    pthread_cond_broadcast(&s->done);
}

/* ---- room ---- */

/* Whether all that is wanted of a segment has been read: readers leave out gaps between payloads.
 */
static bool was_read(const struct remote_segment *g)
{
    return g->consumed >= g->n - g->n / 8;
}

/* The segment that is missed least: one that was read to its end, else, unless `read_only`, the one
 * that was not used for the longest time. */
static struct remote_segment *least_missed(const struct remote_segments *s, bool read_only)
{
    struct remote_segment *found = NULL;

    for (struct remote_segment *x = s->first; x; x = x->next) {
        const bool is_read = was_read(x);

        if (x->users > 0 || x->state == SEGMENT_LOADING ||
            (read_only &&
             (!is_read || s->ticks - x->used_at < (int64_t)USES_RECENT * s->n_objects)))
            continue;
        if (!found || is_read > was_read(found) ||
            (is_read == was_read(found) && x->used_at < found->used_at))
            found = x;
    }
    return found;
}

struct remote_segment *segments_add(struct remote_segments *s, struct remote_object *o,
                                    int64_t begin, int64_t n, bool ahead)
{
    struct remote_segment *g;

    while (s->bytes > 0 && s->bytes + n > s->limit) {
        g = least_missed(s, ahead);
        if (!g)
            return NULL;
        segments_remove(s, g);
    }
    g = calloc(1, sizeof *g);
    if (!g || !start_thread(s)) {
        free(g);
        return NULL;
    }
    *g = (struct remote_segment){
        .next = s->first, .object = o, .begin = begin, .n = n, .used_at = ++s->ticks
    };
    s->first = g;
    s->bytes += n;
    pthread_cond_signal(&s->work);
    return g;
}
