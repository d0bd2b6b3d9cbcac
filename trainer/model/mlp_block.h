/*
 * trainer/model/mlp_block.h - the feed-forward half of a layer: norm; gate and up side by side
 * (column-parallel), SwiGLU or GeGLU, down (row-parallel); or up, gelu or relu, down; or a
 * mixture of experts, which are of the first form (trainer/model/experts.h).
 */
#ifndef TRAINER_MODEL_MLP_BLOCK_H
#define TRAINER_MODEL_MLP_BLOCK_H

#include "trainer/model/pass.h"
#include "trainer/model/residual.h"

/* s->mid (or scratch outer: residual_block_place) has what the attention block adds to s->x, and
 * s->mid becomes the residual. out (memory for collectives; or scratch outer) gets what this block
 * adds to it, without the bias of its row-parallel layer unless a norm follows; NULL: only fill the
 * slot. Where blocks are parallel this one reads s->x, not s->mid, which is then only the residual
 * that its result is added to, and without `out` not computed. */
void mlp_block_forward(const struct pass *p, const struct network_layer *y,
                       struct activations_layer *s, float *out);

/* What must be added to this result. */
struct residual_pending mlp_block_pending(const struct pass *p, const struct network_layer *y,
                                          const struct activations_layer *s);

/* scratch dx has the gradient of the layer's output, and gets that of s->mid, both as residuals.
 * Where blocks are parallel it keeps that of the output, and scratch outer has that of the norm's
 * result: mlp_block_norm_backward adds it when the attention block has read dx. */
void mlp_block_backward(const struct pass *p, const struct network_layer *y,
                        struct activations_layer *s);
void mlp_block_norm_backward(const struct pass *p, const struct network_layer *y,
                             const struct activations_layer *s);

#endif
