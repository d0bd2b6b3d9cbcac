/*
 * trainer/lr_schedule.h - the learning rate of a step: a line up over the warmup, then half a
 * cosine down to min_lr at the end of the run (Loshchilov and Hutter 2017).
 */
#ifndef TRAINER_LR_SCHEDULE_H
#define TRAINER_LR_SCHEDULE_H

#include "trainer/config.h"

/* step from 0, of `steps` in the whole run. */
double schedule_lr(const struct train_optimizer *o, int64_t step, int64_t steps);

#endif
