/*
 * trainer/lr_schedule.h - the learning rate of a step: linear warmup, then cosine decay to min_lr
 * at the end of the run (Loshchilov and Hutter 2017).
 */
#ifndef TRAINER_LR_SCHEDULE_H
#define TRAINER_LR_SCHEDULE_H

#include "trainer/config.h"

/* step counts from 0; steps is the length of the whole run. */
double lr_schedule_at(const struct train_optimizer *o, int64_t step, int64_t steps);

#endif
