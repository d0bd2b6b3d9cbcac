/* device/cpu/cpu_queue.c - see device/cpu/cpu_queue.h. */
#include "device/cpu/cpu_queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/background_thread.h"
#include "core/clock.h"

enum { RING = 64 }; /* operations that can wait; the next one waits for the oldest to finish */

struct ring_entry {
    device_fn fn;
    _Alignas(16) char args[DEVICE_ARGS_MAX];
};

struct cpu_worker {
    cpu_run_fn run;
    pthread_t thread;
    bool has_begun;
    pthread_mutex_t lock; /* for all that follows */
    pthread_cond_t queued_one, finished_one;
    struct ring_entry ring[RING];
    uint64_t queued, finished; /* so far; operation number k is finished when finished >= k */
    bool ending;
    double worked; /* seconds */
};

static struct cpu_worker *worker_new(cpu_run_fn run)
{
    struct cpu_worker *w = calloc(1, sizeof *w);

    if (!w)
        return NULL;
    w->run = run;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->queued_one, NULL);
    pthread_cond_init(&w->finished_one, NULL);
    return w;
}

static void worker_free(struct cpu_worker *w)
{
    pthread_cond_destroy(&w->queued_one);
    pthread_cond_destroy(&w->finished_one);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

struct cpu_queue *cpu_queue_open(struct device *d, enum device_queue_kind kind, cpu_run_fn run)
{
    struct cpu_queue *q = calloc(1, sizeof *q);

    if (!q)
        return NULL;
    q->queue = (struct device_queue){ .device = d, .kind = kind, .has_thread = run != NULL };
    if (run && !(q->worker = worker_new(run))) {
        free(q);
        return NULL;
    }
    return q;
}

void *cpu_queue_scratch(struct cpu_queue *q, int64_t n_bytes)
{
    enum { LINE = 64 };

    if (n_bytes <= q->scratch_bytes)
        return q->scratch;
    free(q->scratch);
    n_bytes = (n_bytes + LINE - 1) / LINE * LINE;
    q->scratch = aligned_alloc(LINE, (size_t)n_bytes);
    q->scratch_bytes = q->scratch ? n_bytes : 0;
    return q->scratch;
}

/* ---- the thread ---- */

static void *work(void *arg)
{
    struct cpu_queue *q = arg;
    struct cpu_worker *w = q->worker;

    pthread_mutex_lock(&w->lock);
    for (;;) {
        const struct ring_entry *next = &w->ring[w->finished % RING];
        double start;

        while (w->queued == w->finished && !w->ending)
            pthread_cond_wait(&w->queued_one, &w->lock);
        if (w->queued == w->finished)
            break;
        pthread_mutex_unlock(&w->lock);
        start = clock_seconds();
        w->run(&q->queue, next->fn, next->args);
        pthread_mutex_lock(&w->lock);
        w->worked += clock_seconds() - start;
        w->finished++;
        pthread_cond_broadcast(&w->finished_one);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static tp_status begin(struct cpu_queue *q, struct tp_err *err)
{
    const int code = background_thread_start(&q->worker->thread, work, q);

    if (code)
        return tp_fail(err, TP_E_NOMEM, "cannot start a thread for a queue: %s", strerror(code));
    q->worker->has_begun = true;
    return TP_OK;
}

bool cpu_queue_close(struct cpu_queue *q, bool failed)
{
    struct cpu_worker *w = q->worker;
    bool stuck;

    if (w && w->has_begun) {
        pthread_mutex_lock(&w->lock);
        stuck = failed && w->queued != w->finished;
        w->ending = !stuck;
        pthread_cond_signal(&w->queued_one);
        pthread_mutex_unlock(&w->lock);
        if (stuck)
            return false;
        pthread_join(w->thread, NULL);
    }
    if (w)
        worker_free(w);
    free(q->scratch);
    free(q);
    return true;
}

/* ---- the caller ---- */

static void wait_for(struct cpu_worker *w, uint64_t number)
{
    while (w->finished < number)
        pthread_cond_wait(&w->finished_one, &w->lock);
}

tp_status cpu_queue_submit(struct cpu_queue *q, device_fn fn, const void *args, int args_bytes,
                           struct tp_err *err)
{
    struct cpu_worker *w = q->worker;
    struct ring_entry *x;
    tp_status st;

    if (!w->has_begun && (st = begin(q, err)))
        return st;
    pthread_mutex_lock(&w->lock);
    if (w->queued >= RING)
        wait_for(w, w->queued - RING + 1);
    x = &w->ring[w->queued % RING];
    x->fn = fn;
    memcpy(x->args, args, (size_t)args_bytes);
    w->queued++;
    pthread_cond_signal(&w->queued_one);
    pthread_mutex_unlock(&w->lock);
    return TP_OK;
}

uint64_t cpu_queue_number(const struct cpu_queue *q)
{
    return q->worker->queued; /* only the caller changes it */
}

bool cpu_queue_has_finished(struct cpu_queue *q, uint64_t number)
{
    struct cpu_worker *w = q->worker;
    bool finished;

    pthread_mutex_lock(&w->lock);
    finished = w->finished >= number;
    pthread_mutex_unlock(&w->lock);
    return finished;
}

void cpu_queue_finish(struct cpu_queue *q, uint64_t number)
{
    pthread_mutex_lock(&q->worker->lock);
    wait_for(q->worker, number);
    pthread_mutex_unlock(&q->worker->lock);
}

double cpu_queue_worked(struct cpu_queue *q)
{
    struct cpu_worker *w = q->worker;
    double worked = 0;

    if (!w)
        return 0;
    pthread_mutex_lock(&w->lock);
    worked = w->worked;
    pthread_mutex_unlock(&w->lock);
    return worked;
}
