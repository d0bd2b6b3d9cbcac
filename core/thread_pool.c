/* core/thread_pool.c - see core/thread_pool.h. */
#include "core/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/background_thread.h"

struct thread_pool_job {
    thread_pool_fn fn;
    void *ctx;
    int64_t n_items;
    atomic_llong next;
    atomic_bool failed;
    pthread_mutex_t lock; /* guards first_err */
    struct tp_err first_err;
};

struct thread_pool_worker {
    struct thread_pool_job *job;
    int number;
    pthread_t thread;
    bool started;
};

static void *work(void *arg)
{
    struct thread_pool_worker *w = arg;
    struct thread_pool_job *job = w->job;
    struct tp_err err = { 0 };

    while (!atomic_load(&job->failed)) {
        int64_t item = atomic_fetch_add(&job->next, 1);

        if (item >= job->n_items)
            break;
        if (job->fn(job->ctx, item, w->number, &err) == TP_OK)
            continue;
        pthread_mutex_lock(&job->lock);
        if (!atomic_exchange(&job->failed, true))
            job->first_err = err;
        pthread_mutex_unlock(&job->lock);
    }
    return NULL;
}

tp_status thread_pool_run(thread_pool_fn fn, void *ctx, int64_t n_items, int n_workers,
                          struct tp_err *err)
{
    struct thread_pool_job job = { .fn = fn, .ctx = ctx, .n_items = n_items };
    struct thread_pool_worker *workers;

    if (n_workers < 1)
        n_workers = 1;
    if (n_workers > n_items)
        n_workers = n_items > 0 ? (int)n_items : 1;
    workers = calloc((size_t)n_workers, sizeof *workers);
    if (!workers)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d threads", n_workers);
    pthread_mutex_init(&job.lock, NULL);
    for (int i = 0; i < n_workers; i++)
        workers[i] = (struct thread_pool_worker){ .job = &job, .number = i };
    for (int i = 1; i < n_workers; i++) /* fewer threads are not a failure */
        workers[i].started = pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0;
    work(&workers[0]);
    for (int i = 1; i < n_workers; i++)
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
    pthread_mutex_destroy(&job.lock);
    free(workers);
    if (atomic_load(&job.failed)) {
        *err = job.first_err;
        return err->status;
    }
    return TP_OK;
}

static void *wait_for_lock(void *lock)
{
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}

tp_status thread_pool_check_start(int n, struct tp_err *err)
{
    pthread_mutex_t hold = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    int started = 1, code = 0; /* the caller's is there */

    if (!threads)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d threads", n);
    pthread_mutex_lock(&hold);
    while (started < n && !code) {
        code = background_thread_start(&threads[started], wait_for_lock, &hold);
        started += !code;
    }
    pthread_mutex_unlock(&hold);
    for (int i = 1; i < started; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    return code ? tp_fail(err, TP_E_IO,
                          "%d threads cannot run: number %d cannot be started: %s; give fewer "
                          "--threads, or raise the limit of processes and threads (ulimit -u)",
                          n, started + 1, strerror(code))
                : TP_OK;
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
    return tp_fail(err, TP_E_USAGE, "%s %d must be between 1 and %d", flag, n,
                   THREAD_POOL_WORKERS_MAX);
}
