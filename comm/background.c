/*
 * comm/background.c - collectives that a thread of this process does while its caller goes on
 * (comm/comm.h).
 *
 * A ring of calls, one producer (the thread that calls comm_*) and one consumer. What a job needs
 * is copied into the ring, so that a caller that gives up and frees its job leaves nothing
 * dangling.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "comm/backend.h"
#include "core/clock.h"

enum { RING = 64 }; /* calls under way; one more waits for the oldest */

struct call {
    struct comm *comm;
    enum comm_call call;
    void *out;
    const void *in;
    int64_t n;
    enum comm_type type;
    enum comm_op op;
};

struct comm_background {
    pthread_t thread;
    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t started_one, finished_one;
    struct call ring[RING];
    uint64_t started, finished; /* so far; call number k is done when finished >= k */
    bool ending;
    double busy, awaited; /* seconds: of the thread in jobs; of the caller in comm_finish */
    struct tp_err err;    /* the first failure: nothing is called after it */
};

static tp_status run(const struct call *x, struct tp_err *err)
{
    struct comm *c = x->comm;

    switch (x->call) {
    case COMM_ALL_REDUCE:
        return c->ops->all_reduce(c, x->out, x->n, x->type, x->op, err);
    case COMM_ALL_GATHER:
        return c->ops->all_gather(c, x->out, x->in, x->n * comm_type_bytes(x->type), err);
    case COMM_REDUCE_SCATTER:
        return c->ops->reduce_scatter(c, x->out, x->in, x->n, x->type, err);
    default:
        return tp_fail(err, TP_E_INTERNAL, "call %d cannot be done in the background", x->call);
    }
}

/* ---- the thread ---- */

static void *work(void *arg)
{
    struct comm_background *b = arg;

    pthread_mutex_lock(&b->lock);
    for (;;) {
        struct tp_err err = { 0 };
        struct call next;
        double start;

        while (b->started == b->finished && !b->ending)
            pthread_cond_wait(&b->started_one, &b->lock);
        if (b->started == b->finished)
            break;
        next = b->ring[b->finished % RING];
        if (!b->err.status) {
            pthread_mutex_unlock(&b->lock);
            start = clock_seconds();
            run(&next, &err);
            pthread_mutex_lock(&b->lock);
            b->busy += clock_seconds() - start;
            b->err = err.status ? err : b->err;
        }
        b->finished++;
        pthread_cond_signal(&b->finished_one);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* The thread gets no signals: who asks this process to stop means its caller. */
static int start_thread(struct comm_background *b)
{
    sigset_t all, old;
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    code = pthread_create(&b->thread, NULL, work, b);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return code;
}

static void background_free(struct comm_background *b)
{
    pthread_cond_destroy(&b->started_one);
    pthread_cond_destroy(&b->finished_one);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static tp_status background_of(struct comm_background **out, struct comm *world, struct tp_err *err)
{
    struct comm_background *b = world->background;
    int code;

    if (!b) {
        if (!(b = calloc(1, sizeof *b)))
            return tp_fail(err, TP_E_NOMEM, "out of memory for collectives in the background");
        pthread_mutex_init(&b->lock, NULL);
        pthread_cond_init(&b->started_one, NULL);
        pthread_cond_init(&b->finished_one, NULL);
        if ((code = start_thread(b))) {
            background_free(b);
            return tp_fail(err, TP_E_NOMEM, "rank %d cannot start a thread: %s", world->rank,
                           strerror(code));
        }
        world->background = b;
    }
    *out = b;
    return TP_OK;
}

bool comm_background_end(struct comm *world, bool failed)
{
    struct comm_background *b = world->background;
    bool never;

    if (!b)
        return true;
    pthread_mutex_lock(&b->lock);
    never = failed && b->started != b->finished;
    b->ending = !never;
    pthread_cond_signal(&b->started_one);
    pthread_mutex_unlock(&b->lock);
    if (never)
        return false;
    pthread_join(b->thread, NULL);
    background_free(b);
    world->background = NULL;
    return true;
}

/* ---- its caller ---- */

/* The caller waits, with the lock, until call number `until` is done. */
static void wait_for(struct comm *world, struct comm_background *b, uint64_t until)
{
    if (b->finished >= until)
        return;
    if (world->way->finishing)
        world->way->finishing(world, true);
    while (b->finished < until)
        pthread_cond_wait(&b->finished_one, &b->lock);
    if (world->way->finishing)
        world->way->finishing(world, false);
}

static void enqueue(struct comm *world, struct comm_background *b, const struct call *x,
                    struct comm_work *job)
{
    pthread_mutex_lock(&b->lock);
    if (b->started >= RING)
        wait_for(world, b, b->started - RING + 1);
    b->ring[b->started % RING] = *x;
    job->number = ++b->started;
    pthread_cond_signal(&b->started_one);
    pthread_mutex_unlock(&b->lock);
}

static tp_status start(const struct call *x, int64_t n_bytes, struct comm_work *job,
                       struct tp_err *err)
{
    struct comm *c = x->comm;
    struct comm_background *b = NULL;
    tp_status st;

    *job = (struct comm_work){ 0 };
    if (!c->overlaps) {
        st = comm_enter(c, x->call, n_bytes, err);
        return st ? st : comm_leave(c, run(x, err));
    }
    if ((st = background_of(&b, c->world, err)))
        return st;
    c->counts.calls[x->call]++;
    c->counts.bytes[x->call] += n_bytes;
    if (c->n_jobs++ == 0)
        c->behind = true; /* the thread does not look at c before it has a job */
    enqueue(c->world, b, x, job);
    job->comm = c;
    return TP_OK;
}

tp_status comm_start_all_reduce(struct comm *c, void *buf, int64_t n, enum comm_type type,
                                enum comm_op op, struct comm_work *job, struct tp_err *err)
{
    const struct call x = { c, COMM_ALL_REDUCE, buf, buf, n, type, op };

    return start(&x, n * comm_type_bytes(type), job, err);
}

tp_status comm_start_all_gather(struct comm *c, void *out, const void *in, int64_t n,
                                enum comm_type type, struct comm_work *job, struct tp_err *err)
{
    const struct call x = { c, COMM_ALL_GATHER, out, in, n, type, COMM_SUM };

    return start(&x, n * comm_type_bytes(type), job, err);
}

tp_status comm_start_reduce_scatter(struct comm *c, void *out, const void *in, int64_t n,
                                    enum comm_type type, struct comm_work *job, struct tp_err *err)
{
    const struct call x = { c, COMM_REDUCE_SCATTER, out, in, n, type, COMM_SUM };

    return start(&x, n * comm_type_bytes(type), job, err);
}

tp_status comm_finish(struct comm *c, struct comm_work *job, struct tp_err *err)
{
    struct comm *world = c->world;
    struct comm_background *b = world->background;
    double began = clock_seconds(), waited;
    tp_status st;

    if (!job->comm)
        return TP_OK;
    if (job->comm != c)
        return tp_fail(err, TP_E_INTERNAL,
                       "a job is finished on another communicator than its own");
    heartbeat_collective(world->tell, true);
    pthread_mutex_lock(&b->lock);
    wait_for(world, b, job->number);
    waited = clock_seconds() - began;
    b->awaited += waited;
    st = b->err.status;
    if (st)
        *err = b->err;
    pthread_mutex_unlock(&b->lock);
    heartbeat_collective(world->tell, false);
    world->waited += waited;
    job->comm = NULL;
    if (--c->n_jobs == 0)
        c->behind = false;
    return st;
}

struct comm_times comm_times(const struct comm *world)
{
    struct comm_background *b = world->background;
    struct comm_times t = { .waited = world->waited };

    if (b) {
        pthread_mutex_lock(&b->lock);
        t.hidden = b->busy > b->awaited ? b->busy - b->awaited : 0;
        pthread_mutex_unlock(&b->lock);
    }
    return t;
}
