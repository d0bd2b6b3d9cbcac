/*
 * kernels/head_norm.h - RMS norm (kernels/rms_norm.h) of each head's queries or keys, as Qwen3 and
 * Gemma 3 have it: w[head_dim] is the same for all heads.
 *
 * A row is a token: `heads` heads side by side, ld* elements from one row to the next, so that they
 * can be a part of a row of queries, keys and values. Heads are `type`: f32, or bf16 where the
 * device keeps_bf16 (kernels/ops.h). Arithmetic is in f32.
 *
 * A norm of all queries or all keys of a token, as OLMo 2 has it, is that of one wide head. Where
 * ranks have parts of its columns, head_norm_sums computes what they must add up first.
 */
#ifndef KERNELS_HEAD_NORM_H
#define KERNELS_HEAD_NORM_H

#include <stdint.h>

#include "layout/dtype.h"

/* y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps) of each head. */
struct head_norm_forward {
    void *y;
    const void *x;
    int64_t ldy, ldx;
    enum dtype type;
    float *rstd; /* [rows][heads] */
    const float *w;
    int64_t rows, heads, head_dim;
    float eps;
    const float *sums; /* [rows][heads] of x^2 over all ranks' columns; NULL: a head is whole */
    float columns;     /* with sums: how many columns these are */
};

/* d has d loss / d y and gets d loss / d x, in its place. dw += d loss / d w, or, with blocks, is
 * set as struct rms_norm_backward has it. */
struct head_norm_backward {
    void *d;
    const void *x;
    int64_t ldd, ldx;
    enum dtype type; /* of d and x */
    const float *rstd, *w;
    float *dw;
    int64_t rows, heads, head_dim;
    int blocks;
    int64_t block_step;
    const float *sums; /* [rows][heads] of d w x over all ranks' columns; NULL: a head is whole */
    float columns;
};

/* out = the sum over the columns of each head that are here: of x^2, or with d of d w x. */
struct head_norm_sums {
    float *out; /* [rows][heads] */
    const void *x, *d;
    int64_t ldx, ldd;
    enum dtype type; /* of x and d */
    const float *w;
    int64_t rows, heads, head_dim;
};

#endif
