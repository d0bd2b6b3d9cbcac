/*
 * comm/reduce.h - element-wise sum or maximum of several rows along one binary tree.
 *
 * The tree is that of a binary counter: neighbours are added in pairs, then pairs of pairs, and
 * what is left over from the shortest upwards. Four rows are (0 + 1) + (2 + 3), three (0 + 1) + 2,
 * seven ((0 + 1) + (2 + 3)) + ((4 + 5) + 6). It is the same for every element, whatever the number
 * of threads, the slice or the vector width, so all ranks and all back ends get the same bits; the
 * rounding error grows with the logarithm of the rows. And it composes: whoever adds every 2^k
 * neighbours along it and the results along it again has the bits of all at once, provided that the
 * rows are a multiple of 2^k.
 * A NaN in any row is the maximum.
 */
#ifndef COMM_REDUCE_H
#define COMM_REDUCE_H

#include <stdint.h>

#include "comm/comm.h"

/* dsts[d][i] = op over rows of rows[r][i], for i < n and each of n_dsts. A dst may be one of the
 * rows (the same address), not overlap one otherwise. At most 2^COMM_REDUCE_LEVELS rows. */
enum { COMM_REDUCE_LEVELS = 16 };
void comm_reduce(void *const *dsts, int n_dsts, const void *const *rows, int n_rows, int64_t n,
                 enum comm_type type, enum comm_op op);

#endif
