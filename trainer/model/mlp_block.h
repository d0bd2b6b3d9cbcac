/*
 * trainer/model/mlp_block.h - the feed-forward half of a layer: norm, gate and up side by side
 * (column), SwiGLU, down (row); or up, gelu, down.
 */
#ifndef TRAINER_MODEL_MLP_BLOCK_H
#define TRAINER_MODEL_MLP_BLOCK_H

#include "trainer/model/pass.h"

/* s->mid holds what the attention block added to s->x, and becomes the residual. out (memory for
 * collectives) gets what this block adds to it, but for the bias of its row layer; NULL: it is not
 * wanted, the slot is. */
void mlp_block_forward(const struct pass *p, const struct network_layer *y,
                       struct activations_layer *s, float *out);

/* scratch dx: from the gradient of the residual that leaves the layer to that of s->mid. */
void mlp_block_backward(const struct pass *p, const struct network_layer *y,
                        struct activations_layer *s);

#endif
