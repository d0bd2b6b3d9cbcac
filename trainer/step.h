/*
 * trainer/step.h - one optimizer step: microbatches forward and backward, reduction, clipping,
 * AdamW.
 */
#ifndef TRAINER_STEP_H
#define TRAINER_STEP_H

#include "trainer/trainer.h"

struct step_result {
    double loss_share; /* the sum over all ranks is the step's mean loss */
    double grad_norm;  /* before clipping */
    double lr;
};

/* Run step number t->position.step and advance the position. Collective; allocates nothing, and
 * waits for the device once, at its end. A device that records graphs replays the step from
 * the fourth on (trainer/step_graph.h). */
tp_status step_run(struct trainer *t, struct step_result *r, struct tp_err *err);

/* Only the forward pass of microbatch `micro` of the next step. Its logits are then in
 * t->scratch.ffn_scratch. */
tp_status step_forward(struct trainer *t, int64_t micro, struct tp_err *err);

#endif
