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

/* s->x with `in` becomes the residual. scratch ffn_scratch gets this rank's columns of the logits,
 * [shards][rows][net.logit.per_shard], net.inner. A shard's matrix is dense, and its width is that
 * of network_vocab_rows_of. */
void vocab_parallel_loss_logits(const struct pass *p, struct activations *s,
                                const struct residual_pending *in);

/* After vocab_parallel_loss_logits, whose result it may overwrite: *total gets the sum over rows of
 * -log softmax at the target, the same on every tp rank. */
void vocab_parallel_loss_forward(const struct pass *p, const struct activations *s, double *total);

/* After vocab_parallel_loss_forward: scratch dx gets the gradient of the residual s->x. scale: the
 * weight of one row's loss in the step's loss. */
void vocab_parallel_loss_backward(const struct pass *p, struct activations *s, float scale);

#endif
