/*
 * trainer/suggestions.h - configurations that can run, when the one that was asked for cannot.
 *
 * `asked` is the configuration as the user gave it. Its micro_batch_size is 0 if none was given;
 * then each layout is tried with its own default.
 */
#ifndef TRAINER_SUGGESTIONS_H
#define TRAINER_SUGGESTIONS_H

#include "trainer/config.h"

/* Check the layout against the model, then the rest. Errors as train_config_check; TP_E_LAYOUT has
 * the nearest layouts that would run within --mem. *checked gets the configuration to run. */
tp_status suggestions_check(struct train_config *checked, const struct train_config *asked,
                            const struct model *m, struct tp_err *err);

/* Check what a rank needs against --mem, before anything is allocated. *most_threads gets the
 * number of kernel threads that fit if no number was asked for, otherwise INT_MAX. TP_E_BUDGET: the
 * message has the numbers, and what would fit: smaller microbatches, recomputation, and the nearest
 * layouts. */
tp_status suggestions_budget(int *most_threads, const struct train_config *asked,
                             const struct model *m, struct tp_err *err);

#endif
