/* storage/remote_wanted.c - see storage/remote_wanted.h. */
#include "storage/remote_wanted.h"

#include <stdlib.h>
#include <string.h>

/* How far ahead neighbours are looked for, and how many runs of neighbours are told apart. */
enum { ITEMS_AHEAD = 4096, RUNS_MAX = 256 };
enum { LENGTH_MIN = 256 << 10 };

static struct remote_wanted *end_ahead(const struct remote_wanted_list *l, int64_t from)
{
    return l->items + (l->n - from < ITEMS_AHEAD ? l->n : from + ITEMS_AHEAD);
}

static bool is_near(int64_t at, int64_t begin, int64_t end)
{
    return at >= begin - REMOTE_GAP_BYTES && at <= end + REMOTE_GAP_BYTES;
}

bool remote_wanted_add(struct remote_wanted_list *l, struct remote_object *o, int64_t begin,
                       int64_t end)
{
    struct remote_wanted *last = l->items && l->n > l->first ? &l->items[l->n - 1] : NULL;

    if (last && last->object == o && last->end == begin && last->begin < last->end) {
        last->end = end;
        return true;
    }
    if (l->items && l->n == l->room && l->first > l->n / 2) {
        memmove(l->items, l->items + l->first, (size_t)(l->n - l->first) * sizeof *l->items);
        l->n -= l->first;
        l->first = 0;
    }
    if (!l->items || l->n == l->room) {
        const int64_t room = l->room ? 2 * l->room : 256;
        void *more = realloc(l->items, (size_t)room * sizeof *l->items);

        if (!more)
            return false;
        l->items = more;
        l->room = room;
    }
    l->items[l->n++] = (struct remote_wanted){ o, begin, end };
    return true;
}

void remote_wanted_put_back(struct remote_wanted_list *l, struct remote_object *o, int64_t begin,
                            int64_t end)
{
    if (l->first > 0) /* else it is read when it is needed */
        l->items[--l->first] = (struct remote_wanted){ o, begin, end };
}

void remote_wanted_forget(struct remote_wanted_list *l, const struct remote_object *o)
{
    int64_t kept = l->first;

    for (int64_t i = l->first; i < l->n; i++)
        if (l->items[i].object != o && l->items[i].begin < l->items[i].end)
            l->items[kept++] = l->items[i];
    l->n = kept;
    if (l->first < l->n)
        return;
    free(l->items);
    *l = (struct remote_wanted_list){ 0 };
}

struct remote_wanted *remote_wanted_next(struct remote_wanted_list *l)
{
    while (l->first < l->n && l->items[l->first].begin == l->items[l->first].end)
        l->first++;
    return l->first < l->n ? &l->items[l->first] : NULL;
}

struct remote_wanted *remote_wanted_find(struct remote_wanted_list *l,
                                         const struct remote_object *o, int64_t offset)
{
    for (int64_t i = l->first; i < l->n; i++)
        if (l->items[i].object == o && offset >= l->items[i].begin && offset < l->items[i].end)
            return &l->items[i];
    return NULL;
}

/* A run of neighbours. */
struct remote_run {
    const struct remote_object *object;
    int64_t begin, end;
};

/* Collect the runs of the next ranges, about `bytes` of them. */
static int find_runs(struct remote_run runs[RUNS_MAX], const struct remote_wanted_list *l,
                     int64_t bytes)
{
    int n = 0;

    for (const struct remote_wanted *w = l->items + l->first; w < end_ahead(l, l->first); w++) {
        int r = 0;

        if (w->begin == w->end)
            continue;
        while (r < n &&
               (runs[r].object != w->object || !is_near(w->begin, runs[r].end, runs[r].end)))
            r++;
        if (r == RUNS_MAX)
            break;
        if (r == n)
            runs[n++] = (struct remote_run){ w->object, w->begin, w->end };
        runs[r].end = w->end;
        bytes -= w->end - w->begin;
        if (bytes <= 0)
            break;
    }
    return n;
}

int64_t remote_wanted_length(const struct remote_wanted_list *l, int64_t most_bytes,
                             int64_t room_bytes)
{
    struct remote_run runs[RUNS_MAX];
    const int n = find_runs(runs, l, 2 * room_bytes);
    int64_t length = most_bytes, sum = room_bytes + 1;

    while (sum > room_bytes && length > LENGTH_MIN) {
        sum = 0;
        for (int r = 0; r < n; r++)
            sum += runs[r].end - runs[r].begin < length ? runs[r].end - runs[r].begin : length;
        if (sum > room_bytes)
            length /= 2;
    }
    return length;
}

/* Extend a request by a range, as far as that fits. */
static void extend(struct remote_wanted_request *q, struct remote_wanted *w, int64_t most_bytes)
{
    const int64_t fits = q->begin + most_bytes;

    if (w->begin < q->begin) { /* as a whole, or not */
        if (q->end - w->begin > most_bytes || w->end > q->begin)
            return;
        q->wanted_bytes += w->end - w->begin;
        q->begin = w->begin;
        w->begin = w->end;
    } else if (w->begin < fits) {
        const int64_t from = w->begin > q->end ? w->begin : q->end;
        const int64_t to = w->end < fits ? w->end : fits;

        if (to > from) {
            q->wanted_bytes += to - from;
            q->end = to;
        }
        w->begin = to;
    }
}

struct remote_wanted_request remote_wanted_take(struct remote_wanted_list *l,
                                                struct remote_wanted *w, int64_t most_bytes)
{
    const struct remote_object *o = w->object;
    struct remote_wanted_request q = { .begin = w->begin, .end = w->begin };
    const struct remote_wanted *end = end_ahead(l, w - l->items);

    extend(&q, w, most_bytes);
    for (w++; w < end && q.end - q.begin < most_bytes; w++)
        if (w->object == o && w->begin < w->end &&
            (is_near(w->begin, q.begin, q.end) || is_near(w->end, q.begin, q.begin)))
            extend(&q, w, most_bytes);
    return q;
}
