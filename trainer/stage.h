/*
 * trainer/stage.h - forward and backward of one microbatch through the layers that a rank has.
 * With pipelines a rank has some of the layers and a schedule calls these per microbatch, each with
 * a slot of its own.
 */
#ifndef TRAINER_STAGE_H
#define TRAINER_STAGE_H

#include "trainer/activation.h"

/* slot ids and targets are filled in. Leaves this rank's columns of the logits in scratch wide. */
tp_status stage_forward(const struct pass *p, struct slot *s, struct tp_err *err);

/* After loss_tp_backward, from scratch dx: all gradients down to the embedding. */
tp_status stage_backward(const struct pass *p, struct slot *s, struct tp_err *err);

/* Zero those gradients that kernels only ever add to: norms, and an embedding that is not tied. */
void stage_clear_gradients(const struct net *n);

#endif
