/*
 * kernels/loss.h - cross entropy over a part of the vocabulary, in local steps. Between them the
 * caller reduces three floats for each row over the tensor group (Shoeybi et al. 2019). No rank
 * ever holds a whole row of logits.
 */
#ifndef KERNELS_LOSS_H
#define KERNELS_LOSS_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/dtype.h"

/* row_max[r] = the largest of logits[r] (-INFINITY when cols is 0); with `merge` only where that is
 * larger than row_max[r]. */
struct loss_max {
    float *row_max;
    const float *logits; /* [rows][cols] */
    int64_t rows, cols;
    bool merge;
};

/* With row_max over the whole vocabulary: logits = exp(logits - row_max) in place, row_sum[r] their
 * sum, row_target[r] = the target's logit minus row_max if it lies in [first, first + cols), else
 * 0. With `keep` the logits stay as they are.
 */
struct loss_sum_exp {
    float *row_sum, *row_target;
    float *logits; /* [rows][cols] */
    const float *row_max;
    const int32_t *targets; /* [rows] */
    int64_t first, rows, cols;
    bool keep;
};

/* With row_sum over the whole vocabulary: dlogits = scale * (exps / row_sum - [target]), `type`;
 * dlogits may be exps where type is f32.
 *
 * With cap > 0 the logits were bent by a soft_cap and kept: exps has them, and dlogits is the
 * gradient of what they were before. */
struct loss_backward {
    void *dlogits;
    enum dtype type;
    const float *exps; /* [rows][cols], of loss_sum_exp */
    const float *row_sum;
    const int32_t *targets;
    int64_t first, rows, cols;
    float scale;
    float cap;
    const float *row_max; /* of loss_sum_exp; read only with a cap */
};

/* *out = the sum over rows of log(row_sum) - row_target, in double, row by row. */
struct loss_total {
    double *out;
    const float *row_sum, *row_target;
    int64_t rows;
};

#endif
