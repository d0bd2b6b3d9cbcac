/*
 * trainer/model/vocab_parallel_loss.h - final norm, head and cross entropy, cut along the
 * vocabulary. Each rank has its own columns of the logits. Three floats of each row are reduced
 * (the largest logit, the sum of exponentials, the target's logit), so no rank holds a whole row of
 * logits.
 */
#ifndef TRAINER_MODEL_VOCAB_PARALLEL_LOSS_H
#define TRAINER_MODEL_VOCAB_PARALLEL_LOSS_H

#include "trainer/model/pass.h"
#include "trainer/model/residual.h"

/* From s->x, which with `in` becomes the stream, to scratch wide: this rank's columns of the
 * logits, [shards][rows][net.logit.each]; a shard's matrix is dense, as wide as vocab_rows_of
 * says. */
void loss_tp_logits(const struct pass *p, struct slot *s, const struct arriving *in);

/* After loss_tp_logits, which it overwrites: *total gets the sum over rows of -log softmax at the
 * target; the same on every tp rank. */
void loss_tp_forward(const struct pass *p, const struct slot *s, double *total);

/* After loss_tp_forward: scratch dx gets the gradient of the stream s->x. scale: what one row's
 * loss counts for in the step's loss. */
void loss_tp_backward(const struct pass *p, struct slot *s, float scale);

#endif
