/*
 * tests/deferred/deferred_queue.h - the queues of the deferred device: what they hold, and which of
 * them goes on next. Inside tests/deferred/ only.
 */
#ifndef TESTS_DEFERRED_DEFERRED_QUEUE_H
#define TESTS_DEFERRED_DEFERRED_QUEUE_H

#include "device/device.h"

/* A point of a queue: behind its first `number` items. */
struct deferred_point {
    struct deferred_queue *queue; /* NULL: passed */
    uint64_t number;
};

struct deferred_item {
    struct deferred_item *next;
    struct deferred_point wait; /* an item without fn: go on when this is passed */
    device_fn fn;
    uint64_t collective; /* its number among those; 0: it is none */
    _Alignas(16) char args[];
};

struct deferred_queue {
    struct device_queue queue;
    struct deferred_queue *next; /* of the device's */
    struct deferred_item *first, *last;
    uint64_t queued, finished; /* items */
    uint64_t priority;         /* in rounds that have priorities: the largest goes first */
    void *scratch;
    int64_t scratch_bytes;
};

struct deferred_queues {
    struct deferred_queue *queues;
    uint64_t collectives, collectives_finished;
    uint64_t random;     /* the generator's state */
    bool has_priorities; /* in this round */
    bool finishes_all;   /* in this round */
};

/* Add an item. TP_E_NOMEM. */
tp_status deferred_queue_add(struct deferred_queues *s, struct deferred_queue *q,
                             const struct device_operation *o, struct tp_err *err);
tp_status deferred_queue_add_wait(struct deferred_queue *q, struct deferred_point p,
                                  struct tp_err *err);

bool deferred_point_is_passed(const struct deferred_point *p);

/* Decide by chance how the items until the next call are ordered. */
void deferred_queues_begin_round(struct deferred_queues *s);

/* Whether a round that has to pass p may end here: collectives are never left, because other ranks
 * wait for them. */
bool deferred_queues_may_end(const struct deferred_queues *s, const struct deferred_point *p);

/* Take the next item to run, and its queue. The caller runs it, calls deferred_queues_finished and
 * frees it. NULL: nothing can run. */
struct deferred_item *deferred_queues_take(struct deferred_queues *s, struct deferred_queue **q);
void deferred_queues_finished(struct deferred_queues *s, struct deferred_queue *q,
                              const struct deferred_item *x);

/* Free everything. */
void deferred_queues_free(struct deferred_queues *s);

#endif
