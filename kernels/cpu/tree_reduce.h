/*
 * kernels/cpu/tree_reduce.h - element-wise sum or maximum of several rows along one binary tree.
 *
 * The tree is that of a binary counter: neighbours are added in pairs, then pairs of pairs; the
 * remaining rows are added from the shortest run to the longest. Four rows are (0 + 1) + (2 + 3),
 * three (0 + 1) + 2, seven ((0 + 1) + (2 + 3)) + ((4 + 5) + 6). The tree is the same for every
 * element, and does not depend on the number of threads, the slice or the vector width. So all
 * ranks and all transports get the same bits, and the rounding error grows with the logarithm of
 * the number of rows. Trees combine: when the number of rows is a multiple of 2^k, adding each 2^k
 * neighbours along the tree, and then their results, gives the same bits as adding all at once.
 */
#ifndef KERNELS_CPU_TREE_REDUCE_H
#define KERNELS_CPU_TREE_REDUCE_H

#include <stdint.h>

#include "layout/dtype.h"

enum tree_reduce_op { TREE_REDUCE_SUM, TREE_REDUCE_MAX };

/* Rows are f32, bf16 (summed in f32 and rounded once), f64 or i64 (sums wrap). A NaN in any row is
 * the maximum. At most 2^TREE_REDUCE_LEVELS rows. */
enum { TREE_REDUCE_LEVELS = 16 };

/* dsts[d][i] = op over rows of rows[r][i], for i < n and each of n_dsts. A dst may be one of the
 * rows (the same address), and not overlap one otherwise. */
struct tree_reduce {
    void *const *dsts;
    int n_dsts;
    const void *const *rows;
    int n_rows;
    enum dtype type;
    enum tree_reduce_op op;
};
void tree_reduce(const struct tree_reduce *t, int64_t n);

#endif
