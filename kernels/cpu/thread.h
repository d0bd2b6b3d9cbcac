/*
 * kernels/cpu/thread.h - how many threads the kernels of this process use (OpenMP; default 1), and
 * the one loop they share work with.
 */
#ifndef KERNELS_CPU_THREAD_H
#define KERNELS_CPU_THREAD_H

#include <stdint.h>

/* n >= 1. Results do not depend on it, but for products (oneDNN may cut k over threads) and sums
 * whose order the header of a kernel names; they are the same from run to run.
 * Threads that wait are OpenMP's: whoever starts several ranks on few cores sets
 * OMP_WAIT_POLICY=passive in their environment, before the process begins. */
void kernels_set_threads(int n);
int kernels_threads(void);

/* Threads that a loop called from here is dealt to: one within a loop that is dealt already. */
int kernels_team(void);

/* Work on items lo .. hi - 1 as thread number `thread` (0 .. kernels_threads() - 1). */
typedef void (*kernels_range_fn)(void *ctx, int64_t lo, int64_t hi, int thread);

/* Cut 0 .. n - 1 into one range a thread, in order and as even as `grain` allows (every range but
 * the last is a multiple of it), and call fn for each. The cut depends on n, grain and the number
 * of threads alone; with one thread, or too little work for two, fn is called here and now. */
void kernels_for(int64_t n, int64_t grain, kernels_range_fn fn, void *ctx);

/* Call fn for each of the items 0 .. n - 1, one at a time (hi = lo + 1), dealt to the threads; what
 * a call does is its thread's alone, products included. So results do not depend on the number of
 * threads, however few the items. */
void kernels_each(int64_t n, kernels_range_fn fn, void *ctx);

/* Items that make a thread worth waking, for loops that cost about `item_bytes` of memory traffic
 * an item; at least 1. */
int64_t kernels_grain(int64_t item_bytes);

#endif
