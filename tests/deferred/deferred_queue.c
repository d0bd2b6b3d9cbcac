/* tests/deferred/deferred_queue.c - see tests/deferred/deferred_queue.h. */
#include "tests/deferred/deferred_queue.h"

#include <stdlib.h>
#include <string.h>

/* ---- chance ---- */

/* splitmix64 */
static uint64_t random_next(struct deferred_queues *s)
{
    uint64_t x = s->random += 0x9e3779b97f4a7c15;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* Half of the rounds choose a queue for each item. The others keep to one order of the queues, so
 * that a queue comes as early or as late as it can: this finds most waits that are missing. */
void deferred_queues_begin_round(struct deferred_queues *s)
{
    s->has_priorities = random_next(s) & 1;
    s->finishes_all = random_next(s) & 1;
    for (struct deferred_queue *q = s->queues; q; q = q->next)
        q->priority = random_next(s);
}

/* ---- adding ---- */

static struct deferred_item *append(struct deferred_queue *q, int args_bytes)
{
    struct deferred_item *x = calloc(1, sizeof *x + (size_t)args_bytes);

    if (!x)
        return NULL;
    if (q->last)
        q->last->next = x;
    else
        q->first = x;
    q->last = x;
    q->queued++;
    return x;
}

static tp_status fail_memory(struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "out of memory for a queued operation");
}

tp_status deferred_queue_add(struct deferred_queues *s, struct deferred_queue *q,
                             const struct device_operation *o, struct tp_err *err)
{
    struct deferred_item *x = append(q, o->args_bytes);

    if (!x)
        return fail_memory(err);
    x->fn = o->fn;
    if (o->flags & DEVICE_COLLECTIVE)
        x->collective = ++s->collectives;
    memcpy(x->args, o->args, (size_t)o->args_bytes);
    return TP_OK;
}

tp_status deferred_queue_add_wait(struct deferred_queue *q, struct deferred_point p,
                                  struct tp_err *err)
{
    struct deferred_item *x = append(q, 0);

    if (!x)
        return fail_memory(err);
    x->wait = p;
    return TP_OK;
}

/* ---- choosing ---- */

bool deferred_point_is_passed(const struct deferred_point *p)
{
    return !p->queue || p->queue->finished >= p->number;
}

bool deferred_queues_may_end(const struct deferred_queues *s, const struct deferred_point *p)
{
    return !s->finishes_all && s->collectives == s->collectives_finished &&
           deferred_point_is_passed(p);
}

static struct deferred_item *remove_first(struct deferred_queue *q)
{
    struct deferred_item *x = q->first;

    q->first = x->next;
    if (!q->first)
        q->last = NULL;
    return x;
}

/* Go past the waits at the head of the queue that are over. True: one was. */
static bool pass_waits(struct deferred_queue *q)
{
    bool any = false;

    while (q->first && !q->first->fn && deferred_point_is_passed(&q->first->wait)) {
        free(remove_first(q));
        q->finished++;
        any = true;
    }
    return any;
}

static bool can_run(const struct deferred_queues *s, const struct deferred_queue *q)
{
    const struct deferred_item *x = q->first;

    return x && x->fn && (!x->collective || x->collective == s->collectives_finished + 1);
}

/* A queue that can go on, NULL: none. */
static struct deferred_queue *choose(struct deferred_queues *s)
{
    struct deferred_queue *chosen = NULL;
    uint64_t n = 0;

    for (struct deferred_queue *q = s->queues; q; q = q->next) {
        if (!can_run(s, q))
            continue;
        n++;
        if (!chosen ||
            (s->has_priorities ? q->priority > chosen->priority : random_next(s) % n == 0))
            chosen = q;
    }
    return chosen;
}

struct deferred_item *deferred_queues_take(struct deferred_queues *s, struct deferred_queue **out)
{
    for (bool any = true; any;) {
        any = false;
        for (struct deferred_queue *q = s->queues; q; q = q->next)
            any = pass_waits(q) || any;
    }
    *out = choose(s);
    return *out ? remove_first(*out) : NULL;
}

void deferred_queues_finished(struct deferred_queues *s, struct deferred_queue *q,
                              const struct deferred_item *x)
{
    q->finished++;
    if (x->collective)
        s->collectives_finished++;
}

void deferred_queues_free(struct deferred_queues *s)
{
    for (struct deferred_queue *q = s->queues, *next; q; q = next) {
        next = q->next;
        while (q->first)
            free(remove_first(q));
        free(q->scratch);
        free(q);
    }
    s->queues = NULL;
}
