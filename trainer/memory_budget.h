/*
 * trainer/memory_budget.h - what a rank of a run needs, before anything is allocated.
 */
#ifndef TRAINER_MEMORY_BUDGET_H
#define TRAINER_MEMORY_BUDGET_H

#include "layout/memory.h"
#include "trainer/config.h"

/* The largest rank's need; c is checked (train_config_check). With --ckpt staging is counted. */
struct memory_need budget_need(const struct train_config *c, const struct model *m);

#endif
