/* storage/remote_segment.c - see storage/remote_segment.h. */
#include "storage/remote_segment.h"

#include <stdlib.h>
#include <unistd.h>

#include "core/background_thread.h"
#include "core/page_pool.h"

/* A segment that was used so lately may be used again, by another thread. */
enum { USES_RECENT = 8 };

/* This part of the limit is for readers that wait. */
enum { RESERVE_PART = 16 };

static struct remote_segments process = { .lock = PTHREAD_MUTEX_INITIALIZER,
                                          .work = PTHREAD_COND_INITIALIZER,
                                          .done = PTHREAD_COND_INITIALIZER,
                                          .limit = REMOTE_SEGMENTS_BYTES };

/* For what is fetched. New pages would be filled with zeros first, which takes longer than the rest
 * of what the processor does for a byte. */
static struct page_pool pool = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct remote_segments *remote_segments_of_process(void)
{
    pthread_mutex_lock(&process.lock);
    if (process.owner != getpid()) { /* the parent's threads do not exist here */
        process.first = NULL;
        process.wanted = (struct remote_wanted_list){ 0 };
        process.bytes = 0;
        process.n_objects = process.n_threads = process.n_idle = process.n_waiting = 0;
        process.owner = getpid();
    }
    pthread_mutex_unlock(&process.lock);
    return &process;
}

struct remote_segment *remote_segments_find(const struct remote_segments *s,
                                            const struct remote_object *o, int64_t offset)
{
    for (struct remote_segment *x = s->first; x; x = x->next)
        if (x->object == o && offset >= x->begin && offset < x->begin + x->n)
            return x;
    return NULL;
}

static void set_state(struct remote_segments *s, struct remote_segment *g,
                      enum remote_segment_state state)
{
    s->n_waiting += (state == SEGMENT_WAITING) - (g->state == SEGMENT_WAITING);
    g->state = state;
}

void remote_segments_remove(struct remote_segments *s, struct remote_segment *segment)
{
    for (struct remote_segment **at = &s->first; *at; at = &(*at)->next)
        if (*at == segment) {
            *at = segment->next;
            break;
        }
    set_state(s, segment, SEGMENT_READY);
    s->bytes -= segment->n;
    if (segment->is_pooled)
        page_pool_give(&pool, segment->data, segment->n);
    else
        free(segment->data);
    free(segment);
}

/* ---- room ---- */

/* Whether all that is wanted of a segment has been read: readers leave out gaps between
 * payloads. */
static bool was_read(const struct remote_segment *g)
{
    return g->consumed >= (g->wanted > 0 ? g->wanted : g->n - g->n / 8);
}

/* What is evicted first: segments that were read, then those that readers have named and not begun
 * to read, then those in the middle of being read. */
enum eviction { EVICT_LAST, EVICT_UNREAD, EVICT_READ };

static enum eviction eviction_of(const struct remote_segment *g)
{
    return was_read(g) ? EVICT_READ : g->wanted > 0 && g->consumed == 0 ? EVICT_UNREAD : EVICT_LAST;
}

/* Of those that will be read, the last one is evicted first; of the others, the one that was not
 * used for the longest time. */
static bool is_evicted_before(const struct remote_segment *x, const struct remote_segment *y)
{
    const enum eviction a = eviction_of(x), b = eviction_of(y);

    if (a != b)
        return a > b;
    return a == EVICT_UNREAD ? x->used_at > y->used_at : x->used_at < y->used_at;
}

/* The segment to evict; `read_only`: of those that were read to their end, and not lately. NULL:
 * there is none. */
static struct remote_segment *find_victim(const struct remote_segments *s, bool read_only)
{
    struct remote_segment *found = NULL;

    for (struct remote_segment *x = s->first; x; x = x->next) {
        if (x->users > 0 || x->state == SEGMENT_LOADING ||
            (read_only &&
             (!was_read(x) || s->ticks - x->used_at < (int64_t)USES_RECENT * s->n_objects)))
            continue;
        if (!found || is_evicted_before(x, found))
            found = x;
    }
    return found;
}

/* Evict segments until there is room for n bytes: `read_only` those that were read, else any. */
static bool make_room(struct remote_segments *s, int64_t n, bool read_only)
{
    while (s->bytes > 0 && s->bytes + n > s->limit) {
        struct remote_segment *g = find_victim(s, read_only);

        if (!g)
            return false;
        if (eviction_of(g) == EVICT_UNREAD) /* it is fetched again, first of all */
            remote_wanted_put_back(&s->wanted, g->object, g->begin, g->begin + g->n);
        remote_segments_remove(s, g);
    }
    return true;
}

static struct remote_segment *insert(struct remote_segments *s, struct remote_object *o,
                                     int64_t begin, int64_t n)
{
    struct remote_segment *g = calloc(1, sizeof *g);

    if (!g)
        return NULL;
    *g = (struct remote_segment){
        .next = s->first, .object = o, .begin = begin, .n = n, .used_at = ++s->ticks
    };
    s->first = g;
    s->bytes += n;
    s->n_waiting++;
    return g;
}

void remote_segments_release(struct remote_segments *s, struct remote_segment *g)
{
    if (g->users > 0)
        return;
    if (g->wanted > 0 && was_read(g)) {
        remote_segments_remove(s, g);
        if (s->n_idle > 0)
            pthread_cond_signal(&s->work);
    }
    pthread_cond_broadcast(&s->done);
}

/* ---- what will be read ---- */

/* The length of the next request. Each connection can have two; and there is room for one of each
 * run of neighbours, while the next ones are fetched. */
static int64_t request_length(const struct remote_segments *s)
{
    const int64_t most = s->limit / 2 / remote_connections();

    return remote_wanted_length(&s->wanted, most < REMOTE_SEGMENT_MAX ? most : REMOTE_SEGMENT_MAX,
                                s->limit / 4 * 3);
}

/* Begin a segment with a wanted range. */
static struct remote_segment *take(struct remote_segments *s, struct remote_wanted *w,
                                   int64_t length)
{
    struct remote_object *o = w->object;
    const struct remote_wanted_request q = remote_wanted_take(&s->wanted, w, length);
    struct remote_segment *g = insert(s, o, q.begin, q.end - q.begin);

    if (g) {
        g->wanted = q.wanted_bytes;
        g->exact = true;
    }
    return g;
}

/* The range that is read first, less what a segment has, which is then wanted of that segment. */
static struct remote_wanted *next_wanted(struct remote_segments *s)
{
    struct remote_wanted *w;
    struct remote_segment *g;

    while ((w = remote_wanted_next(&s->wanted)) &&
           (g = remote_segments_find(s, w->object, w->begin))) {
        const int64_t end = g->begin + g->n < w->end ? g->begin + g->n : w->end;

        if (g->wanted > 0)
            g->wanted += end - w->begin;
        w->begin = end;
    }
    return w;
}

/* A segment of what is read first, if there is room for it. Some room is left for readers that
 * wait. */
static struct remote_segment *add_next(struct remote_segments *s)
{
    struct remote_wanted *w = next_wanted(s);
    const int64_t length = w ? request_length(s) : 0;

    return w && make_room(s, length + s->limit / RESERVE_PART, true) ? take(s, w, length) : NULL;
}

/* Whether a thread fetches something, or a reader copies: there may be room afterwards. */
static bool is_busy(const struct remote_segments *s)
{
    for (const struct remote_segment *x = s->first; x; x = x->next)
        if (x->users > 0 || x->state == SEGMENT_WAITING || x->state == SEGMENT_LOADING)
            return true;
    return false;
}

struct remote_segment *remote_segments_add_wanted(struct remote_segments *s,
                                                  const struct remote_object *o, int64_t offset,
                                                  bool *wait)
{
    struct remote_wanted *w = remote_wanted_find(&s->wanted, o, offset);
    int64_t length = w ? request_length(s) : 0;
    struct remote_segment *g;

    *wait = false;
    if (!w)
        return NULL;
    if (s->limit - s->bytes >= REMOTE_GAP_BYTES && s->limit - s->bytes < length)
        length = s->limit - s->bytes; /* shorter, so that none is evicted for it */
    if (offset - w->begin >= length || !make_room(s, length, is_busy(s))) {
        *wait = is_busy(s);
        return NULL;
    }
    g = take(s, w, length);
    if (g)
        pthread_cond_signal(&s->work);
    return g;
}

/* ---- fetching ---- */

static tp_status fetch(struct remote_segment *g, struct tp_err *err)
{
    g->data = page_pool_take(&pool, g->n);
    g->is_pooled = true;
    if (!g->data)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", g->object->path);
    return remote_range_read(g->object, g->begin, g->n, g->data, err);
}

/* The segment to fetch next: one that a reader waits for, if there is one. */
static struct remote_segment *next_to_fetch(const struct remote_segments *s)
{
    struct remote_segment *found = NULL;

    for (struct remote_segment *x = s->n_waiting > 0 ? s->first : NULL; x; x = x->next) {
        if (x->state != SEGMENT_WAITING)
            continue;
        if (!found || (x->users > 0) > (found->users > 0) ||
            ((x->users > 0) == (found->users > 0) && x->used_at < found->used_at))
            found = x;
    }
    return found;
}

static void *run_thread(void *ctx);

/* One more thread, when more segments wait than threads and more may be. */
static bool start_thread(struct remote_segments *s)
{
    if (s->n_idle > s->n_waiting || s->n_threads >= remote_connections())
        return s->n_threads > 0;
    if (background_thread_start(&s->threads[s->n_threads], run_thread, s) == 0)
        s->n_threads++;
    return s->n_threads > 0;
}

bool remote_segments_can_fetch(struct remote_segments *s)
{
    return s->n_threads > 0 || start_thread(s);
}

/* Another thread may find work too. */
static void wake_another(struct remote_segments *s)
{
    if (remote_wanted_next(&s->wanted) && start_thread(s) && s->n_idle > 0)
        pthread_cond_signal(&s->work);
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
        if (!g && (g = add_next(s)))
            wake_another(s);
        if (!g) {
            s->n_idle++;
            pthread_cond_wait(&s->work, &s->lock);
            s->n_idle--;
            continue;
        }
        set_state(s, g, SEGMENT_LOADING);
        pthread_mutex_unlock(&s->lock);
        st = fetch(g, &err);
        pthread_mutex_lock(&s->lock);
        set_state(s, g, st ? SEGMENT_FAILED : SEGMENT_READY);
        g->err = err;
        pthread_cond_broadcast(&s->done);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void remote_segments_end_threads(struct remote_segments *s)
{
    s->stop = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_threads; i++)
        pthread_join(s->threads[i], NULL);
    pthread_mutex_lock(&s->lock);
    page_pool_release(&pool);
    page_pool_init(&pool);
    s->n_threads = 0;
    s->stop = false;
    pthread_cond_broadcast(&s->done);
}

struct remote_segment *remote_segments_add(struct remote_segments *s, struct remote_object *o,
                                           int64_t begin, int64_t n, bool ahead)
{
    struct remote_segment *g;

    if (!make_room(s, n, ahead) || !start_thread(s))
        return NULL;
    g = insert(s, o, begin, n);
    if (g)
        pthread_cond_signal(&s->work);
    return g;
}

bool remote_segments_put(struct remote_segments *s, struct remote_object *o, int64_t begin,
                         int64_t n, unsigned char *data)
{
    struct remote_segment *g = make_room(s, n, true) ? insert(s, o, begin, n) : NULL;

    if (!g)
        return false;
    set_state(s, g, SEGMENT_READY);
    g->data = data;
    g->exact = true;
    return true;
}

void remote_segments_want(struct remote_segments *s, struct remote_object *o, int64_t begin,
                          int64_t end)
{
    if (!start_thread(s) || !remote_wanted_add(&s->wanted, o, begin, end))
        return;
    o->is_named = true;
    if (s->n_idle > 0)
        pthread_cond_signal(&s->work);
}
