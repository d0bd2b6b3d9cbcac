/*
 * trainer/resume_diff.h - the differences between the run that saved a checkpoint and the run that
 * resumes it. None of them is an error, because people lengthen runs, lower the learning rate or
 * use longer sequences. But they may explain a change in the loss curve.
 */
#ifndef TRAINER_RESUME_DIFF_H
#define TRAINER_RESUME_DIFF_H

#include <stddef.h>

#include "ckpt/manifest.h"
#include "core/arena.h"
#include "trainer/config.h"

enum { RESUME_DIFF_MAX = 960 };

/* Write one sentence to buf: differences in arithmetic, masters that were lost to a cast,
 * constants of the model, options of optimizer and data. "" when nothing differs. now: this run's
 * configuration, checked. data_tokens: the length of its data. It is compared, and no name, because
 * files are moved. What the checkpoint does not contain is not compared. */
void resume_diff_describe(char buf[RESUME_DIFF_MAX], const struct manifest *was,
                          const struct train_config *now, const struct model *model,
                          int64_t data_tokens, struct arena *arena);

#endif
