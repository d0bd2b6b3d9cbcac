/*
 * kernels/loss.h - cross entropy over a part of the vocabulary, in local steps. Between them the
 * caller reduces three floats for each row over the tensor group (Shoeybi et al. 2019). No rank
 * ever holds a whole row of logits.
 *
 * The steps are loss_max, loss_sum_exp, loss_backward, on the same logits and arrays of rows. What
 * the logits become between them is the device's affair. The CPU puts exponentials there, because
 * it is limited by arithmetic. A GPU is limited by memory: it leaves the logits and computes
 * exponentials twice. Its loss_max also sums them, over the largest of these columns (online
 * softmax, Milakov and Gimelshein 2018), and its loss_sum_exp only rescales the sums.
 *
 * Logits are f32, or bf16 where the device keeps_bf16 (kernels/ops.h). Arithmetic is in f32.
 */
#ifndef KERNELS_LOSS_H
#define KERNELS_LOSS_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/dtype.h"

/* row_max[r] = the largest of logits[r] (-INFINITY when cols is 0); with `merge` only where that is
 * larger than row_max[r]. row_sum and row_target get what loss_sum_exp on this device reads
 * there. */
struct loss_max {
    float *row_max;
    float *row_sum, *row_target;
    const void *logits; /* [rows][cols] `type` */
    enum dtype type;
    int64_t rows, cols;
    bool merge;
};

/* With row_max over the whole vocabulary: row_sum[r] = the sum of exp(logits - row_max),
 * row_target[r] = the target's logit minus row_max if it lies in [first, first + cols), else 0. The
 * logits become what loss_backward with this cap reads. */
struct loss_sum_exp {
    float *row_sum, *row_target;
    void *logits; /* [rows][cols] `type` */
    enum dtype type;
    const float *row_max;
    const int32_t *targets; /* [rows] */
    int64_t first, rows, cols;
    float cap;
};

/* With row_sum over the whole vocabulary: dlogits = scale * (exp(logits - row_max) / row_sum -
 * [target]), `type`; dlogits may be the logits where they are `type` too. On a GPU they always are.
 *
 * With cap > 0 the logits were bent by a soft_cap, and dlogits is the gradient of what they were
 * before. */
struct loss_backward {
    void *dlogits;
    enum dtype type;
    const void *logits; /* [rows][cols] logits_type, as loss_sum_exp left them */
    enum dtype logits_type;
    const float *row_sum;
    const int32_t *targets;
    int64_t first, rows, cols;
    float scale;
    float cap;
    const float *row_max; /* of loss_sum_exp */
};

/* *out = the sum over rows of log(row_sum) - row_target, in double, row by row. */
struct loss_total {
    double *out;
    const float *row_sum, *row_target;
    int64_t rows;
};

#endif
