/*
 * trainer/budget.h - --mem: whether a rank's need fits, before anything is allocated.
 */
#ifndef TRAINER_BUDGET_H
#define TRAINER_BUDGET_H

#include "trainer/config.h"

/* TP_E_BUDGET: the sentence has the numbers, and the nearest layouts that would fit. */
tp_status budget_check(const struct train_config *c, const struct model *m, struct tp_err *err);

#endif
