/* storage/remote_object.c - see storage/remote_object.h. */
#include "storage/remote_object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/remote.h"
#include "storage/remote_range.h"
#include "storage/remote_segment.h"

enum {
    SEGMENT_BYTES_MIN = 256 << 10,
    SEGMENT_BYTES_FIRST = 1 << 20, /* where nothing was read yet: a request takes a while anyway */
    SEGMENT_BYTES_SPARSE = 128 << 10, /* more than the end of an archive that readers look at */
    LIMIT_MIN = 4 << 20,
    TICKS_ACTIVE = 64,
    LIMITS_AHEAD = 2, /* so that there are whole requests to choose when there is room again */
};

void remote_object_limit(int64_t bytes)
{
    struct remote_segments *s = remote_segments_of_process();

    pthread_mutex_lock(&s->lock);
    s->limit = bytes < LIMIT_MIN ? LIMIT_MIN : bytes;
    pthread_mutex_unlock(&s->lock);
}

void remote_object_sparse(bool sparse)
{
    struct remote_segments *s = remote_segments_of_process();

    pthread_mutex_lock(&s->lock);
    s->sparse = sparse;
    pthread_mutex_unlock(&s->lock);
}

/* Learn the length from the first byte; an object without bytes stays at 0. */
static tp_status examine_begin(struct remote_object *o, struct tp_err *err)
{
    unsigned char byte;
    int64_t got;

    return remote_range_examine(o, 0, 1, &byte, &got, err);
}

/* Count an open object, and keep its first bytes, or NULL. */
static void count_object(struct remote_object *o, int64_t offset, int64_t n, unsigned char *first)
{
    struct remote_segments *s = remote_segments_of_process();

    pthread_mutex_lock(&s->lock);
    while (s->stop) /* the threads of earlier objects are ending */
        pthread_cond_wait(&s->done, &s->lock);
    s->n_objects++;
    if (first && !remote_segments_put(s, o, offset, n, first))
        free(first);
    pthread_mutex_unlock(&s->lock);
}

tp_status remote_object_open(struct remote_object **out, int64_t *size, const char *path,
                             int64_t offset, int64_t n, struct tp_err *err)
{
    struct remote_object *o = calloc(1, sizeof *o);
    unsigned char *first = NULL;
    int64_t got = 0;
    tp_status st = TP_OK;

    if (!o)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to open it", path);
    if (snprintf(o->path, sizeof o->path, "%s", path) >= (int)sizeof o->path)
        TP_TRY(tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", path));
    if (offset >= 0 && n > 1 && n <= REMOTE_SEGMENT_MAX && (first = malloc((size_t)n)))
        TP_TRY(remote_range_examine(o, offset, n, first, &got, err));
    if (o->size == 0)
        TP_TRY(examine_begin(o, err));
    count_object(o, offset, got, got > 0 ? first : NULL);
    if (got > 0)
        first = NULL;
    *size = o->size;
    *out = o;
    o = NULL;
done:
    free(first);
    free(o);
    return st;
}

/* A segment of the object that no thread loads; *loading: there is one that a thread loads. */
static struct remote_segment *one_of(const struct remote_segments *s, const struct remote_object *o,
                                     bool *loading)
{
    *loading = false;
    for (struct remote_segment *x = s->first; x; x = x->next) {
        if (x->object == o && x->state != SEGMENT_LOADING)
            return x;
        *loading = *loading || x->object == o;
    }
    return NULL;
}

void remote_object_close(struct remote_object *o)
{
    struct remote_segments *s = remote_segments_of_process();
    struct remote_segment *g;
    bool loading = true;

    if (!o)
        return;
    pthread_mutex_lock(&s->lock);
    remote_wanted_forget(&s->wanted, o);
    while ((g = one_of(s, o, &loading)) || loading) {
        if (g) {
            remote_segments_remove(s, g);
            continue;
        }
        pthread_cond_wait(&s->done, &s->lock);
        remote_wanted_forget(&s->wanted, o); /* a reader that needed room may have put one back */
    }
    if (--s->n_objects == 0)
        remote_segments_end_threads(s);
    pthread_mutex_unlock(&s->lock);
    free(o);
}

/* ---- reading; under the lock ---- */

/* Objects that are being read now: those that are only open need no room. */
static int active(struct remote_segments *s)
{
    int n = 0;

    s->counts++;
    for (struct remote_segment *x = s->first; x; x = x->next) {
        if (x->object->counted == s->counts)
            continue;
        x->object->counted = s->counts;
        n += s->ticks - x->object->read_at < TICKS_ACTIVE;
    }
    return n > 1 ? n : 1;
}

/* The longest segment: all connections, or all objects, can have two of them. */
static int64_t longest(struct remote_segments *s)
{
    const int n_active = active(s);
    const int streams = n_active > remote_connections() ? n_active : remote_connections();
    const int64_t n = s->limit / 2 / streams;

    return n < SEGMENT_BYTES_MIN    ? SEGMENT_BYTES_MIN
           : n < REMOTE_SEGMENT_MAX ? n
                                    : REMOTE_SEGMENT_MAX;
}

/* The length of a segment at `begin`: what is wanted, but not what another segment has. */
static int64_t cut(const struct remote_segments *s, const struct remote_object *o, int64_t begin,
                   int64_t wanted)
{
    int64_t end = begin + wanted < o->size ? begin + wanted : o->size;

    for (const struct remote_segment *x = s->first; x; x = x->next)
        if (x->object == o && x->begin > begin && x->begin < end)
            end = x->begin;
    return end - begin;
}

static bool follows(const struct remote_segments *s, const struct remote_object *o, int64_t offset)
{
    for (const struct remote_segment *x = s->first; x; x = x->next)
        if (x->object == o && !x->exact && offset >= x->begin &&
            offset <= x->begin + x->n + REMOTE_GAP_BYTES)
            return true;
    return false;
}

/* Begin to fetch what comes after the segments that follow `offset`. */
static void read_ahead(struct remote_segments *s, struct remote_object *o, int64_t offset)
{
    const int64_t most = s->limit / 4 * 3 / active(s);
    const struct remote_segment *g;
    int64_t at = offset;

    while ((g = remote_segments_find(s, o, at)))
        at = g->begin + g->n;
    while (at < o->size && at - offset < most) {
        if (2 * o->window <= longest(s))
            o->window *= 2;
        g = remote_segments_add(s, o, at, cut(s, o, at, o->window), true);
        if (!g)
            return;
        at += g->n;
        while ((g = remote_segments_find(s, o, at)))
            at = g->begin + g->n;
    }
}

/* The length of the segment for n bytes at `offset`, of which no segment has the first. */
static int64_t begin_window(struct remote_segments *s, struct remote_object *o, int64_t offset,
                            int64_t n, bool sequential)
{
    const int64_t most = longest(s);
    const int64_t first = SEGMENT_BYTES_FIRST < most ? SEGMENT_BYTES_FIRST : most;

    if (!sequential || o->window == 0)
        o->window = o->window / 2 > first ? o->window / 2 : first;
    if (s->sparse)
        o->window = SEGMENT_BYTES_SPARSE;
    if (n > most)
        n = most;
    return cut(s, o, offset, n > o->window ? n : o->window);
}

/* A segment of an object whose readers name what they read: a request that was named, or what is
 * read now and nothing else. */
static struct remote_segment *use_named(struct remote_segments *s, struct remote_object *o,
                                        int64_t offset, int64_t n)
{
    bool wait = false;
    struct remote_segment *g = remote_segments_add_wanted(s, o, offset, &wait);

    if (g || wait)
        return g;
    n = cut(s, o, offset, n < longest(s) ? n : longest(s));
    g = remote_segments_add(s, o, offset, n, false);
    if (g) {
        g->wanted = n;
        g->exact = true;
    }
    return g;
}

/* The segment with the byte at `offset`, in use by the caller; NULL: there is no room now. */
static struct remote_segment *use_segment(struct remote_segments *s, struct remote_object *o,
                                          int64_t offset, int64_t n)
{
    const bool sequential = !o->is_named && follows(s, o, offset);
    struct remote_segment *g = remote_segments_find(s, o, offset);

    if (!g && o->is_named)
        g = use_named(s, o, offset, n);
    else if (!g)
        g = remote_segments_add(s, o, offset, begin_window(s, o, offset, n, sequential), false);
    if (!g)
        return NULL;
    o->read_at = s->ticks;
    g->users++;
    if (sequential && (!s->sparse || n > SEGMENT_BYTES_SPARSE))
        read_ahead(s, o, offset);
    return g;
}

void remote_object_will_read(struct remote_object *o, int64_t offset, int64_t n)
{
    struct remote_segments *s = remote_segments_of_process();

    if (offset < 0 || n <= 0 || offset > o->size - n)
        return;
    pthread_mutex_lock(&s->lock);
    remote_segments_want(s, o, offset, offset + n);
    pthread_mutex_unlock(&s->lock);
}

int64_t remote_object_ahead_bytes(void)
{
    struct remote_segments *s = remote_segments_of_process();
    int64_t bytes;

    pthread_mutex_lock(&s->lock);
    bytes = LIMITS_AHEAD * s->limit;
    pthread_mutex_unlock(&s->lock);
    return bytes;
}

/* Wait until it is fetched. */
static tp_status await(struct remote_segments *s, struct remote_segment *g, struct tp_err *err)
{
    tp_status st = TP_OK;

    while (g->state == SEGMENT_WAITING || g->state == SEGMENT_LOADING)
        pthread_cond_wait(&s->done, &s->lock);
    if (g->state == SEGMENT_FAILED) {
        *err = g->err;
        st = err->status;
        if (--g->users == 0) { /* a later read tries again */
            remote_segments_remove(s, g);
            pthread_cond_broadcast(&s->done); /* there is room for readers that wait for it */
        }
    }
    return st;
}

const char *remote_object_etag(const struct remote_object *o)
{
    return o->etag;
}

tp_status remote_object_read(struct remote_object *o, int64_t offset, void *buf, size_t n,
                             struct tp_err *err)
{
    struct remote_segments *s = remote_segments_of_process();
    unsigned char *to = buf;
    tp_status st = TP_OK;

    if (offset < 0 || (int64_t)n > o->size || offset > o->size - (int64_t)n)
        return tp_fail(err, TP_E_CORRUPT, "%s: has %lld bytes, expected %zu bytes at offset %lld",
                       o->path, (long long)o->size, n, (long long)offset);
    pthread_mutex_lock(&s->lock);
    while (n > 0) {
        struct remote_segment *g = use_segment(s, o, offset, (int64_t)n);
        int64_t got;

        if (!g && !remote_segments_can_fetch(s)) { /* it would wait for ever */
            st = tp_fail(err, TP_E_IO,
                         "%s: no thread can be started to read it; raise the limit of processes "
                         "(ulimit -u, or that of the container)",
                         o->path);
            break;
        }
        if (!g && s->bytes == 0) {
            st = tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", o->path);
            break;
        }
        if (!g) {
            pthread_cond_wait(&s->done, &s->lock);
            continue;
        }
        TP_TRY(await(s, g, err));
        got = g->begin + g->n - offset < (int64_t)n ? g->begin + g->n - offset : (int64_t)n;
        pthread_mutex_unlock(&s->lock);
        memcpy(to, g->data + (offset - g->begin), (size_t)got);
        pthread_mutex_lock(&s->lock);
        g->consumed += got;
        g->used_at = ++s->ticks;
        g->users--;
        remote_segments_release(s, g);
        to += got;
        offset += got;
        n -= (size_t)got;
    }
done:
    pthread_mutex_unlock(&s->lock);
    return st;
}
