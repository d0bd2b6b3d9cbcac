/*
 * trainer/model/attention_block.h - the attention half of a layer: norm, q k v side by side
 * (column), rotary embedding, attention over this rank's heads, output projection (row).
 */
#ifndef TRAINER_MODEL_ATTENTION_BLOCK_H
#define TRAINER_MODEL_ATTENTION_BLOCK_H

#include "trainer/model/pass.h"
#include "trainer/model/residual.h"

/* s->x with `in` becomes the stream. s->mid gets what this block adds to it, but for the bias of
 * its row layer. */
void block_attention_forward(const struct pass *p, const struct layer *y, struct layer_slot *s,
                             const struct arriving *in);

/* scratch dx: from the gradient of s->mid (as a stream) to that of s->x. */
void block_attention_backward(const struct pass *p, const struct layer *y, struct layer_slot *s);

#endif
