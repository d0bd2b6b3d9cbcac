/*
 * trainer/logits.h - --logits: writes the logits of the first batch, for comparison with other
 * programs. Only here whole rows of logits are gathered, on rank 0.
 */
#ifndef TRAINER_LOGITS_H
#define TRAINER_LOGITS_H

#include "trainer/trainer.h"

/* Write input_ids [batch, seq] (i64) and logits [batch, seq, vocab] (f32) of the next step,
 * computed with the current weights, to a safetensors file. Collective. */
tp_status logits_write(struct trainer *t, const char *path, struct tp_err *err);

/* Bytes of host memory that rank 0, which needs the most, takes for that on CPUs. MEMORY_MOST: more
 * than can be counted. */
int64_t logits_bytes(const struct train_config *c, const struct model *m);

#endif
