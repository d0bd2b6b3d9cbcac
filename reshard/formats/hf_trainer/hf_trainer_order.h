/*
 * reshard/formats/hf_trainer/hf_trainer_order.h - parameters by their numbers, from the order of a
 * model's parameters in some version of transformers. Inside reshard/formats/hf_trainer/ only.
 */
#ifndef RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_ORDER_H
#define RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_ORDER_H

#include "reshard/formats/hf_trainer/hf_trainer_search.h"

/* Find the parameter of each state, in the order that fits best: that of the version in config.json
 * where several fit. *s->why: none fits, or it is not known which. */
tp_status hf_trainer_order_take(const struct parameter_order_item **out,
                                const struct hf_trainer_search *s, struct tp_err *err);

#endif
