/*
 * core/thread_pool.h - run independent items of work on several threads.
 */
#ifndef CORE_THREAD_POOL_H
#define CORE_THREAD_POOL_H

#include <stdint.h>

#include "core/err.h"

/* More threads do not help, and their stacks and buffers would take many GiB. */
enum { THREAD_POOL_WORKERS_MAX = 1024 };

/* Work on item number `item`. `worker`, 0 .. n_workers - 1, selects the thread's own buffers. */
typedef tp_status (*thread_pool_fn)(void *ctx, int64_t item, int worker, struct tp_err *err);

/* Call fn for items 0 .. n_items - 1 on n_workers threads, one of which is the caller's. Items
 * start in ascending order. After the first failure no more items start; that failure is returned.
 * It is not a failure when fewer threads can be started. */
tp_status thread_pool_run(thread_pool_fn fn, void *ctx, int64_t n_items, int n_workers,
                          struct tp_err *err);

/* Check that n threads, the caller's included, can run at once: OpenMP ends the process with exit
 * code 1 where it cannot start one. TP_E_IO. */
tp_status thread_pool_check_start(int n, struct tp_err *err);

/* Check a number of threads that was given by the option `flag`. TP_E_USAGE: it is not from 1 to
 * THREAD_POOL_WORKERS_MAX. */
tp_status thread_pool_check_workers(const char *flag, int n, struct tp_err *err);

/* Number of CPUs that this process may run on; at least 1. */
int thread_pool_cores(void);

#endif
