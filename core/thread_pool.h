/*
 * core/thread_pool.h - run independent work items on a few threads.
 */
#ifndef CORE_THREAD_POOL_H
#define CORE_THREAD_POOL_H

#include <stdint.h>

#include "core/err.h"

/* Work on item number `item`; `worker` (0 .. n_workers - 1) picks private buffers. */
typedef tp_status (*thread_pool_fn)(void *ctx, int64_t item, int worker, struct tp_err *err);

/* Call fn for every item 0 .. n_items - 1, in ascending order of start, on n_workers threads (the
 * caller's is one of them). Stops handing out items after the first failure and returns that one.
 */
tp_status thread_pool_run(thread_pool_fn fn, void *ctx, int64_t n_items, int n_workers,
                          struct tp_err *err);

/* More threads than this help nobody, and their stacks and buffers are many GiB. */
enum { THREAD_POOL_WORKERS_MAX = 1024 };

/* Whether n, which an option (`flag`, for the message) has as its value, is a number of threads to
 * start: 1 to THREAD_POOL_WORKERS_MAX, else TP_E_USAGE. */
tp_status thread_pool_check_workers(const char *flag, int n, struct tp_err *err);

/* Processors this process may run on; at least 1. */
int thread_pool_cores(void);

#endif
