/*
 * trainer/model/attention_block.h - the attention half of a layer: norm; q, k and v side by side
 * (column-parallel); rotary embedding; attention over this rank's heads; output projection
 * (row-parallel).
 */
#ifndef TRAINER_MODEL_ATTENTION_BLOCK_H
#define TRAINER_MODEL_ATTENTION_BLOCK_H

#include "trainer/model/pass.h"
#include "trainer/model/residual.h"

/* s->x with `in` becomes the residual. s->mid gets what this block adds to it, without the bias of
 * its row-parallel layer unless a norm follows. */
void attention_block_forward(const struct pass *p, const struct network_layer *y,
                             struct activations_layer *s, const struct residual_pending *in);

/* scratch dx has the gradient of s->mid (as a residual), and gets that of s->x. */
void attention_block_backward(const struct pass *p, const struct network_layer *y,
                              struct activations_layer *s);

#endif
