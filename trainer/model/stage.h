/*
 * trainer/model/stage.h - forward and backward of one microbatch through a virtual stage of the
 * layers that a rank has. A schedule calls these per microbatch and virtual stage, each with a slot
 * of its own.
 */
#ifndef TRAINER_MODEL_STAGE_H
#define TRAINER_MODEL_STAGE_H

#include "trainer/model/pass.h"

/* Where a virtual stage's input belongs: the residual, before stage_forward. The first stage makes
 * it itself.
 */
float *stage_input(const struct activations *s);

/* slot ids (on the first stage) and input are filled in. Leaves the residual in s->x, but for the
 * last stage, where stage_logits finishes it. */
void stage_forward(const struct pass *p, int vstage, struct activations *s);

/* Last stage, after stage_forward: this rank's columns of the logits, in scratch wide. */
void stage_logits(const struct pass *p, struct activations *s);

/* Last stage, after stage_forward, slot targets filled in: logits, loss and their gradients.
 * *total gets the sum of losses over rows; scale: what one row's loss counts for. Leaves the
 * gradient of the residual in scratch dx. */
void stage_loss(const struct pass *p, struct activations *s, float scale, double *total);

/* From the gradient of the residual that leaves the virtual stage, in scratch dx, to that of its
 * input, in the same place; the first stage goes down to the embedding. */
void stage_backward(const struct pass *p, int vstage, struct activations *s);

/* Zero those gradients that kernels only ever add to: norms, biases, and an embedding whose
 * gradient no head has written before. */
void stage_clear_gradients(const struct network *n);

#endif
