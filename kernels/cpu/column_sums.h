/*
 * kernels/cpu/column_sums.h - rows added up by several threads: gradients of what all rows share,
 * biases and the weights of norms. Inside kernels/cpu/.
 *
 * A thread sums 32 rows at a time, and then those sums, so that rounding grows in two short chains
 * rather than one long one. The threads' totals are added in the order of the threads.
 */
#ifndef KERNELS_CPU_COLUMN_SUMS_H
#define KERNELS_CPU_COLUMN_SUMS_H

#include "device/device.h"

/* The sums of one thread: its total and its part, `cols` floats each. */
struct column_sums {
    float *total, *part; /* rows are added to part */
    int64_t cols;
};

/* Room for every thread of the device, in the queue's scratch memory. TP_E_NOMEM. */
tp_status column_sums_room(float **room, struct device_queue *q, int64_t cols, struct tp_err *err);

/* The sums of a thread in that room. */
struct column_sums column_sums_of(float *room, int64_t cols, int thread);

/* Set the sums of `threads` threads in a room to zero. */
void column_sums_clear(float *room, int64_t cols, int threads);

/* Row r of a thread's rows lo .. hi - 1 was added to its part. */
void column_sums_next(const struct column_sums *s, int64_t r, int64_t lo, int64_t hi);

/* to[i] += the totals of `threads` threads in columns first + i, for i < n. */
void column_sums_add(float *to, int64_t first, int64_t n, const float *room, int64_t cols,
                     int threads);

#endif
