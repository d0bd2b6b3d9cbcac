/*
 * reshard/formats/hf_trainer/hf_trainer_names.h - parameters by their names, which an optimizer may
 * have, or the state_dict() of its model in the same file. Inside reshard/formats/hf_trainer/ only.
 */
#ifndef RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_NAMES_H
#define RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_NAMES_H

#include "reshard/formats/hf_trainer/hf_trainer_search.h"

/* The parameter of this name, in a live model of some version of transformers, looked for from `at`
 * on, where it usually is; n: there is none. */
int hf_trainer_names_find(const struct parameter_order_item *params, int n, int at,
                          const char *name);

/* The name here of entry i of the model's state_dict(); NULL: it is no tensor of the model. */
tp_status hf_trainer_names_weight(const char **out, const struct hf_trainer_optimizer *o, int64_t i,
                                  struct tp_err *err);

/* Find the parameter of each state of an optimizer that has names. *s->why: one is unknown. */
tp_status hf_trainer_names_take(const struct parameter_order_item **out,
                                const struct hf_trainer_search *s, struct tp_err *err);

/* Without a model, names are those of the weights. */
tp_status hf_trainer_names_take_all(const struct parameter_order_item **out,
                                    const struct hf_trainer_optimizer *o, struct tp_err *err);

#endif
