/*
 * kernels/cpu/thread.h - the loops with which kernels share work among the threads of their device
 * (OpenMP).
 *
 * q is the queue that the kernel runs on; NULL stands for one thread. OpenMP's threads wait between
 * loops: where several ranks share few cores, OMP_WAIT_POLICY=passive must be in their environment
 * before the process begins.
 */
#ifndef KERNELS_CPU_THREAD_H
#define KERNELS_CPU_THREAD_H

#include <stdint.h>

#include "device/device.h"

/* Threads that share a loop which begins here: 1 inside of a loop that is shared already. */
int kernels_team(const struct device_queue *q);

/* Work on items lo .. hi - 1 as thread number `thread` (0 .. kernels_team() - 1). */
typedef void (*kernels_range_fn)(void *ctx, int64_t lo, int64_t hi, int thread);

/* Cut 0 .. n - 1 into one range for each thread, in order and as even as `grain` allows (every
 * range but the last is a multiple of it), and call fn for each. The ranges depend on n, grain and
 * the number of threads alone. With one thread, or too little work for two, fn is called
 * directly. */
void kernels_for(const struct device_queue *q, int64_t n, int64_t grain, kernels_range_fn fn,
                 void *ctx);

/* Call fn for each of the items 0 .. n - 1, one at a time (hi = lo + 1), shared among the threads.
 * Everything in a call, products included, runs on its thread alone. So results do not depend on
 * the number of threads, even with few items. */
void kernels_each(const struct device_queue *q, int64_t n, kernels_range_fn fn, void *ctx);

/* The number of items that is worth waking a thread, for loops that cost about `item_bytes` of
 * memory traffic for each item; at least 1. */
int64_t kernels_grain(int64_t item_bytes);

#endif
