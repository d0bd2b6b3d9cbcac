/*
 * reshard/formats/hf_trainer/hf_trainer_params.h - which state of optimizer.pt is of which
 * parameter. Inside reshard/formats/hf_trainer/ only.
 *
 * Trainer makes two groups: first the parameters with weight decay, then those without
 * (hf_trainer_groups.h). Both have the order of named_parameters(), which is that of transformers'
 * classes (layout/parameter_order.h). Each set of parameters without weight decay contains the one
 * before it, so the sizes of the groups tell which it is. A program's own optimizer may have one
 * group of all parameters. All shapes must fit. Where two orders fit, the version in config.json
 * decides. Where a file has the model's state_dict() too, the order is that of this. A program with
 * Accelerate, or with a loop of its own, makes its groups itself.
 */
#ifndef RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_PARAMS_H
#define RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_PARAMS_H

#include "reshard/formats/hf_trainer/hf_trainer_search.h"

/* Find the parameter of each state: (*out)[i] is that of o->states[i], in the arena, with the shape
 * of the state's moments. m is NULL where the model is not known: then the file must have names,
 * or the model's state_dict() and one group of all its tensors.
 * *why: it is not known; TP_E_CORRUPT: the file does not fit the model. */
tp_status hf_trainer_params_find(const struct parameter_order_item **out,
                                 const struct hf_trainer_optimizer *o,
                                 const struct hf_trainer_program *program, const struct model *m,
                                 struct tp_err *why, struct tp_err *err);

/* ---- as transformers 5 has them ---- */

/* Which parameters have no weight decay. */
enum hf_trainer_groups {
    HF_TRAINER_GROUPS_NORMS,    /* norms and biases */
    HF_TRAINER_GROUPS_EXAMPLES, /* what has "bias" or "layer_norm.weight" in its name */
    HF_TRAINER_GROUPS_ONE,      /* none: there is one group */
};

/* The parameters in the order of the newest version: the first *n_decayed have weight decay.
 * `tensors` are the n of model_params. */
tp_status hf_trainer_params_list(struct parameter_order_item **out, int *n_out, int *n_decayed,
                                 const struct model *m, enum hf_trainer_groups groups,
                                 const struct tensor *tensors, int n, struct arena *arena,
                                 struct tp_err *err);

#endif
