/*
 * comm/control.h - control messages between ranks: small, in host memory, blocking. Ranks use them
 * to agree on statuses, texts, sizes and times, before and after they compute.
 *
 * All ranks make the same calls in the same order, from one thread. Buffers are borrowed. When a
 * rank ends early, the others get TP_E_COMM or the launcher ends them.
 */
#ifndef COMM_CONTROL_H
#define COMM_CONTROL_H

#include <stdint.h>

#include "core/err.h"

struct comm_control;

/* This rank, 0 .. size - 1, and the number of ranks of the job. c is NULL where one process works
 * alone: it is rank 0 of 1. */
int control_rank(const struct comm_control *c);
int control_size(const struct comm_control *c);

/* Agree on a status. If any rank passes a failure, every rank gets the failure of the lowest such
 * rank and its message; the other ranks get the message with "rank 3: " before it. c is NULL where
 * one process works alone: the status is its own. */
tp_status control_agree(struct comm_control *c, tp_status st, struct tp_err *err);

/* After a failure that control_agree returned on every rank: the ranks continue. Clears *err. Every
 * rank calls it. */
void control_recover(struct comm_control *c, struct tp_err *err);

/* Return when all ranks have called it. */
tp_status control_barrier(struct comm_control *c, struct tp_err *err);

/* Copy n_bytes of the root's buf to every rank. */
tp_status control_broadcast(struct comm_control *c, void *buf, int64_t n_bytes, int root,
                            struct tp_err *err);

/* Copy rank r's n_bytes at `in` to out + r * n_bytes on every rank. */
tp_status control_all_gather(struct comm_control *c, void *out, const void *in, int64_t n_bytes,
                             struct tp_err *err);

/* Copy every rank's bytes to rank 0, concatenated in rank order; sizes may differ. On rank 0 *out
 * is malloc'ed (the caller frees it) and sizes[size] is filled; elsewhere *out = NULL and sizes is
 * not used. TP_E_NOMEM on every rank when rank 0 has too little memory. */
tp_status control_gather(struct comm_control *c, const void *in, int64_t n_bytes, void **out,
                         int64_t *sizes, struct tp_err *err);

/* In place: x[i] = the sum, or the largest, over ranks of x[i], for i < n. Sums of doubles follow
 * the tree of kernels/cpu/tree_reduce.h; sums of integers wrap. */
tp_status control_sum_f64(struct comm_control *c, double *x, int64_t n, struct tp_err *err);
tp_status control_sum_i64(struct comm_control *c, int64_t *x, int64_t n, struct tp_err *err);
tp_status control_max_i64(struct comm_control *c, int64_t *x, int64_t n, struct tp_err *err);

#endif
