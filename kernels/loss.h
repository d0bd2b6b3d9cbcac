/*
 * kernels/loss.h - cross entropy over a vocabulary shard, in the two local steps between which
 * the caller reduces three floats a row over the tensor group (Shoeybi et al. 2019). No rank ever
 * holds a whole row of logits.
 */
#ifndef KERNELS_LOSS_H
#define KERNELS_LOSS_H

#include <stdint.h>

#include "layout/dtype.h"

/* row_max[r] = max over this shard's cols (-INFINITY when cols is 0). */
void loss_max(float *row_max, const float *logits, int64_t rows, int64_t cols);

/* With row_max over the whole vocabulary: logits = exp(logits - row_max) in place, row_sum[r] their
 * sum, row_target[r] = logit of the target minus row_max if it lies in [first, first + cols), else
 * 0. */
void loss_sum_exp(float *row_sum, float *row_target, float *logits, const float *row_max,
                  const int32_t *targets, int64_t first, int64_t rows, int64_t cols);

/* With row_sum over the whole vocabulary: dlogits = scale * (exp / row_sum - [target]), `type`;
 * may be in place where type is f32. */
void loss_backward(void *dlogits, enum dtype type, const float *exps, const float *row_sum,
                   const int32_t *targets, int64_t first, int64_t rows, int64_t cols, float scale);

/* Sum over rows of log(row_sum) - row_target, in double. */
double loss_total(const float *row_sum, const float *row_target, int64_t rows);

#endif
