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

enum { COLUMN_SUMS_ARRAYS = 2 };

struct column_sums {
    int64_t rows, cols; /* cols: of all arrays together */
    int64_t row_bytes;  /* memory traffic of a row */

    /* Add what row number `row` gives to sums[cols], the arrays one after the other. Threads call
     * it at the same time. */
    void (*add_row)(const void *ctx, float *sums, int64_t row);
    const void *ctx;

    float *out[COLUMN_SUMS_ARRAYS]; /* NULL: there is no further array */
    int blocks;         /* 0: all rows have one sum; else each rows / blocks rows have one, which
                           one thread computes */
    int64_t block_step; /* elements from a block's sums to the next one's, in each array */
    bool clear;         /* the sums of blocks are stored, and not added to what is there */
};

/* out += the sums of the rows. Scratch memory of the queue is used. TP_E_NOMEM. */
tp_status column_sums_add(struct device_queue *q, const struct column_sums *s, struct tp_err *err);

#endif
