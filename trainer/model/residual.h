/*
 * trainer/model/residual.h - the residual, and the norms that read it.
 *
 * A block writes what it adds to the residual, not the residual. The norm that reads it next adds
 * both while it reads them (one pass over memory instead of three).
 */
#ifndef TRAINER_MODEL_RESIDUAL_H
#define TRAINER_MODEL_RESIDUAL_H

#include "trainer/model/pass.h"

/* What must be added to a block's result to get the residual; NULL: nothing. */
struct residual_pending {
    const float *residual; /* [rows][h] the residual before the block */
    const float *bias;     /* [h] of the block's row-parallel layer */
    const uint16_t *block; /* [rows][h] the result itself, if it is bf16; else NULL, and the place
                              of the sum has it */
};

/* Where a block with the sum at x writes its result, net.outer: x itself, or scratch outer. */
void *residual_block_place(const struct pass *p, float *x);

/* The result in scratch outer, or NULL. */
const uint16_t *residual_block(const struct pass *p);

/* x becomes the residual, and y (in the run's dtype) its norm, or the residual itself, which may be
 * x, where there is none. stats: [2][rows] floats for
 * backward. */
void residual_norm(const struct pass *p, const struct network_norm *norm, void *y, float *stats,
                   float *x, const struct residual_pending *in);

/* What the norm multiplies its `cols` columns by: its weight, or 1 + its weight. The memory is
 * valid until the next call. */
const float *residual_norm_weight(const struct pass *p, const struct network_norm *norm,
                                  int64_t cols);

/* y = the norm of what a block computed, x with the bias of its row-parallel layer (NULL: none;
 * only in f32), which x gets. x and y are net.outer. stats: [rows] floats for backward. */
void residual_post_norm(const struct pass *p, const struct network_norm *norm, void *y,
                        float *stats, void *x, const float *bias);

/* The gradient of what a block computed: scratch dx, or, where a norm follows, scratch dblock,
 * which is computed from dx, with the norm's own gradients. */
const float *residual_post_norm_backward(const struct pass *p, const struct network_norm *norm,
                                         const void *x, const float *stats);

/* The same in the run's dtype, which products read: dout itself, or scratch dy, which the norm that
 * computed dout may have written. */
const void *residual_block_gradient(const struct pass *p, const float *dout);

/* Before the backward pass of a stage's last layer, if no norm has computed scratch dx. */
void residual_begin_backward(const struct pass *p);

/* Add to scratch dx the gradient of the residual, from scratch outer, and compute the norm's own
 * gradients if there is one, and that of the bias below where norm->row_bias_grad says so. */
void residual_norm_backward(const struct pass *p, const struct network_norm *norm, const float *x,
                            const float *stats);

/* At the end of a stage: x becomes the residual. */
void residual_finish(const struct pass *p, float *x, const struct residual_pending *in);

/* Compute the gradient of a row-parallel layer's bias, if it has one that no norm sums, from that
 * of the residual. */
void residual_bias_backward(const struct pass *p, const struct linear *l, const float *dx);

#endif
