/* core/thread_pool.c - see core/thread_pool.h. */
#include "core/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

struct run {
    thread_pool_fn fn;
    void *ctx;
    int64_t n_items;
    atomic_llong next;
    atomic_bool failed;
    pthread_mutex_t lock; /* guards first_err */
    struct tp_err first_err;
};

struct worker {
    struct run *run;
    int number;
    pthread_t thread;
    bool started;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct run *run = w->run;
    struct tp_err err = { 0 };

    while (!atomic_load(&run->failed)) {
        int64_t item = atomic_fetch_add(&run->next, 1);

        if (item >= run->n_items)
            break;
        if (run->fn(run->ctx, item, w->number, &err) == TP_OK)
            continue;
        pthread_mutex_lock(&run->lock);
        if (!atomic_exchange(&run->failed, true))
            run->first_err = err;
        pthread_mutex_unlock(&run->lock);
    }
    return NULL;
}

tp_status thread_pool_run(thread_pool_fn fn, void *ctx, int64_t n_items, int n_workers,
                          struct tp_err *err)
{
    struct run run = { .fn = fn, .ctx = ctx, .n_items = n_items };
    struct worker *workers;

    if (n_workers < 1)
        n_workers = 1;
    if (n_workers > n_items)
        n_workers = n_items > 0 ? (int)n_items : 1;
    workers = calloc((size_t)n_workers, sizeof *workers);
    if (!workers)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d threads", n_workers);
    pthread_mutex_init(&run.lock, NULL);
    for (int i = 0; i < n_workers; i++)
        workers[i] = (struct worker){ .run = &run, .number = i };
    for (int i = 1; i < n_workers; i++) /* fewer threads than asked for is no failure */
        workers[i].started = pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0;
    work(&workers[0]);
    for (int i = 1; i < n_workers; i++)
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
    pthread_mutex_destroy(&run.lock);
    free(workers);
    if (atomic_load(&run.failed)) {
        *err = run.first_err;
        return err->status;
    }
    return TP_OK;
}

int thread_pool_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

tp_status thread_pool_check_workers(const char *flag, int n, struct tp_err *err)
{
    if (n >= 1 && n <= THREAD_POOL_WORKERS_MAX)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "%s %d must lie between 1 and %d", flag, n,
                   THREAD_POOL_WORKERS_MAX);
}
