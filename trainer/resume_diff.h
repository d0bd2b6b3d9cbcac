/*
 * trainer/resume_diff.h - what differs between the run that saved a checkpoint and the one that
 * goes on. Nothing of it forbids going on: people lengthen runs, lower rates, stretch contexts. But
 * a curve that bends there should not be a riddle.
 */
#ifndef TRAINER_RESUME_DIFF_H
#define TRAINER_RESUME_DIFF_H

#include <stddef.h>

#include "ckpt/manifest.h"
#include "core/arena.h"
#include "trainer/config.h"

enum { DRIFT_TEXT_MAX = 512 };

/* One sentence for people in buf, "" when nothing differs: arithmetic, masters that were lost to a
 * cast, constants of the model, options of optimizer and data. now: checked, of this run. What the
 * checkpoint does not say is not compared. */
void drift_describe(char buf[DRIFT_TEXT_MAX], const struct manifest *was,
                    const struct train_config *now, const struct model *model, struct arena *arena);

#endif
