/*
 * comm/reduce.h - element-wise sum or maximum of several ranks' rows, in rank order.
 *
 * The order of the additions is (((row 0 + row 1) + row 2) + ...) for every element, whatever the
 * number of threads, the slice or the vector width: all ranks and all back ends get the same bits.
 * A NaN in any row is the maximum.
 */
#ifndef COMM_REDUCE_H
#define COMM_REDUCE_H

#include <stdint.h>

#include "comm/comm.h"

/* dsts[d][i] = op over rows of rows[r][i], for i < n and each of n_dsts. A dst may be one of the
 * rows (the same address), not overlap one otherwise. */
void comm_reduce(void *const *dsts, int n_dsts, const void *const *rows, int n_rows, int64_t n,
                 enum comm_type type, enum comm_op op);

#endif
