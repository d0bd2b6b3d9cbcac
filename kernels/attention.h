/*
 * kernels/attention.h - causal softmax attention with grouped queries, in blocks that never hold a
 * whole T x T matrix (Dao et al. 2022): the forward pass keeps the log-sum-exp of each row, the
 * backward pass computes the scores again. One call may compute a part of a longer attention (some
 * query rows, some keys), for sequences that are cut over ranks. The results of several parts are
 * merged by their log-sum-exp (Liu et al. 2023).
 *
 * q[batch * seq][heads * head_dim], k and v[batch * seq][kv_heads * head_dim], out as q. All of
 * them are `type` (f32 or bf16). Rows may be strided (ld*, in elements), so that q, k and v can lie
 * side by side. Query head h reads KV head h / (heads / kv_heads).
 */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/dtype.h"

/* The forward pass. Parts of one attention are merged with weights from their sums of exponentials
 * (online softmax), so the division into parts changes only the rounding. */
struct attention {
    int64_t batch, seq, heads, kv_heads, head_dim;
    enum dtype type;
    const void *q, *k, *v;
    int64_t ldq, ldk, ldv;
    void *out; /* [batch * seq][ldo] */
    int64_t ldo;
    float *lse;           /* [batch][heads][seq] */
    float scale;          /* of the products of queries and keys: 1 / sqrt(head_dim) */
    float cap;            /* > 0: scores s become cap tanh(s / cap) */
    int64_t window;       /* > 0: row i does not see keys before i - window + 1. With `keys` at
                             least one key must be left for each row */
    bool one_thread_each; /* one thread computes a head, even if there is only one head: then no
                             result depends on the number of threads */

    /* For one of several parts with the same rows. All zero: the whole attention. */
    int64_t keys;           /* > 0: not causal, each row sees keys 0 .. keys - 1 of its sequence */
    int64_t q_step, k_step; /* rows from one sequence to the next: of q, out and lse; of k, v and
                               their gradients. For when they exceed seq and keys */
    float *sum;             /* forward writes out here in f32, for bf16 too; or NULL */
    bool merge; /* earlier parts used other keys: forward merges its result into out (bf16: into
                   sum) and lse, backward adds to dq, dk and dv */
};

/* The backward pass: dq, dk and dv (row strides lddq, lddk, lddv) are overwritten, unless of.merge.
 * d_out is of.type with stride ldo. of.out and of.lse are those of the whole forward pass, after
 * its last part. */
struct attention_backward {
    struct attention of;
    const void *d_out;
    void *dq, *dk, *dv;
    int64_t lddq, lddk, lddv;
    enum dtype type; /* of dq, dk and dv: f32, or, without of.merge, of.type where the device
                        keeps_bf16 (kernels/ops.h) */
};

#endif
