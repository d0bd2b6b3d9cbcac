/*
 * comm/reduce.h - kernels/cpu/tree_reduce.h for the types of comm/comm.h.
 */
#ifndef COMM_REDUCE_H
#define COMM_REDUCE_H

#include "comm/comm.h"
#include "kernels/cpu/tree_reduce.h"

static inline void comm_reduce(void *const *dsts, int n_dsts, const void *const *rows, int n_rows,
                               int64_t n, enum comm_type type, enum comm_op op)
{
    const struct tree_reduce t = { dsts,
                                   n_dsts,
                                   rows,
                                   n_rows,
                                   type == COMM_F32   ? DTYPE_F32
                                   : type == COMM_F64 ? DTYPE_F64
                                                      : DTYPE_I64,
                                   op == COMM_SUM ? TREE_REDUCE_SUM : TREE_REDUCE_MAX };

    tree_reduce(&t, n);
}

#endif
