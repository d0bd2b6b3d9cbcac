/*
 * trainer/logits.h - --logits: what the model says to the first batch, for comparison with other
 * programs. The only place where a whole row of logits comes together, on rank 0.
 */
#ifndef TRAINER_LOGITS_H
#define TRAINER_LOGITS_H

#include "trainer/trainer.h"

/* Write input_ids [batch, seq] (i64) and logits [batch, seq, vocab] (f32) of the next step, from
 * the weights as they are, to a safetensors file. Collective. */
tp_status logits_write(struct trainer *t, const char *path, struct tp_err *err);

#endif
