/*
 * trainer/model/stage.h - the forward and backward passes of one microbatch through a virtual
 * stage of a rank. The schedule calls them for each microbatch and virtual stage; each such
 * pass has its own slot.
 */
#ifndef TRAINER_MODEL_STAGE_H
#define TRAINER_MODEL_STAGE_H

#include "trainer/model/pass.h"

/* The place of a virtual stage's input, the residual, before stage_forward. The first stage
 * computes it itself. */
float *stage_input(const struct activations *s);

/* The slot's ids (on the first stage) and input are filled in. s->x gets the residual; on the last
 * stage stage_logits completes it. */
void stage_forward(const struct pass *p, int vstage, struct activations *s);

/* Last stage, after stage_forward: computes this rank's columns of the logits, in scratch
 * ffn_scratch. */
void stage_logits(const struct pass *p, struct activations *s);

/* Last stage, after stage_forward, with the slot's targets filled in: logits, loss and their
 * gradients. *total gets the sum of losses over rows. scratch dx gets the gradient of the
 * residual. */
void stage_loss(const struct pass *p, struct activations *s, double *total);

/* scratch dx has the gradient of the virtual stage's output, and gets that of its input. The first
 * stage also computes the embedding's gradient. */
void stage_backward(const struct pass *p, int vstage, struct activations *s);

/* Clear the gradients that kernels only add to: norms, biases, and an embedding whose gradient no
 * head has written already. */
void stage_clear_gradients(const struct network *n);

#endif
