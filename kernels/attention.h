/*
 * kernels/attention.h - causal softmax attention with grouped queries, in blocks that never hold
 * a whole T x T matrix (Dao et al. 2022): the forward pass keeps the log-sum-exp of each row, the
 * backward pass recomputes the scores. A part of it, for sequences that are cut over ranks: some
 * rows meet some keys, results of several parts are merged by their log-sum-exp (Liu et al. 2023).
 *
 * q[batch * seq][heads * head_dim], k and v[batch * seq][kv_heads * head_dim], out as q; all
 * `type` (f32 or bf16) but for gradients, which are f32. Rows may be strided (ld*, in elements) so
 * that q, k and v can lie side by side. Query head h reads kv head h / (heads / kv_heads).
 */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "layout/dtype.h"

struct attention {
    int64_t batch, seq, heads, kv_heads, head_dim;
    enum dtype type;
    const void *q, *k, *v;
    int64_t ldq, ldk, ldv;
    void *out; /* [batch * seq][ldo] */
    int64_t ldo;
    float *lse;       /* [batch][heads][seq] */
    float scale;      /* 1 / sqrt(head_dim) */
    float *workspace; /* attention_workspace(a) floats */
    bool alone; /* a head is one thread's even if it is the only one: then no result depends on
                   the number of threads */

    /* A part of a longer attention: some rows and some keys, of several calls for the same rows.
     * All zero: the whole of it. */
    int64_t keys;           /* > 0: no mask, each row sees keys 0 .. keys - 1 of its sequence */
    int64_t q_step, k_step; /* rows from a sequence to the next, of q, out, lse and of k, v (and
                               their gradients) where they are more than seq and keys */
    float *sum;             /* forward leaves out here, in f32 also in bf16, or NULL */
    bool more; /* other keys were seen before: forward merges its result into out (bf16: into sum)
                  and lse, backward adds to dq, dk and dv */
};

/* The same for all parts with no more keys than seq (or `keys`, if given) says. */
int64_t attention_workspace(const struct attention *a);

/* Merging weighs two results by their sums of exponentials (online softmax): which keys came in
 * which call changes rounding alone. */
tp_status attention_forward(const struct attention *a, struct tp_err *err);

/* dq, dk, dv (f32, row strides lddq, lddk, lddv) are overwritten, unless a->more. d_out is `type`,
 * stride ldo; a->out and a->lse are those of the whole forward pass, after its last part. */
tp_status attention_backward(const struct attention *a, const void *d_out, float *dq, int64_t lddq,
                             float *dk, int64_t lddk, float *dv, int64_t lddv, struct tp_err *err);

#endif
