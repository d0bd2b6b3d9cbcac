/*
 * trainer/suggestions.h - what a person who asked for a run that cannot be may ask for instead.
 *
 * `asked` is the configuration as it was given: micro 0 where none was named, so that other layouts
 * are tried with their own.
 */
#ifndef TRAINER_SUGGESTIONS_H
#define TRAINER_SUGGESTIONS_H

#include "trainer/config.h"

/* The layout that was asked for against the model, then the batch: TP_E_LAYOUT or TP_E_USAGE as
 * train_config_check, with the nearest layouts that would run within --mem where the layout is at
 * fault. Fills in *checked, the configuration to run. */
tp_status advice_check(struct train_config *checked, const struct train_config *asked,
                       const struct model *m, struct tp_err *err);

/* --mem: whether a rank's need fits, before anything is allocated. TP_E_BUDGET: the sentence has
 * the numbers, and what would fit: smaller microbatches, recomputation, and the nearest layouts. */
tp_status advice_budget(const struct train_config *asked, const struct model *m,
                        struct tp_err *err);

#endif
