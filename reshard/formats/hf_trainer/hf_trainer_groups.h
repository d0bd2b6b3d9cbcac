/*
 * reshard/formats/hf_trainer/hf_trainer_groups.h - the groups of an optimizer's parameters: those
 * with weight decay, and those without. Inside reshard/formats/hf_trainer/ only.
 *
 * Which parameters have no weight decay depends on the version of transformers:
 *
 *     before 4.50    biases, and norms whose class is nn.LayerNorm or is registered as one
 *                    (Llama's, and in some versions Granite's)
 *     4.50 to 4.5x   these, and what has "layernorm" in its name
 *     since          biases, and all norms
 *
 * Each of these sets contains the one before it. transformers' examples for Accelerate have another
 * set of this chain: biases, and what has "layer_norm.weight" in its name. Some programs have the
 * group without weight decay first.
 */
#ifndef RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_GROUPS_H
#define RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_GROUPS_H

#include "reshard/formats/hf_trainer/hf_trainer_optimizer.h"

/* Which parameters have no weight decay, the largest set first. */
enum hf_trainer_groups_rule {
    HF_TRAINER_DECAY_NO_NORM,
    HF_TRAINER_DECAY_NO_LAYERNORM,
    HF_TRAINER_DECAY_NO_LAYER_NORM, /* of transformers' examples for Accelerate */
    HF_TRAINER_DECAY_NO_BIAS,
    HF_TRAINER_DECAY_ALL,
    HF_TRAINER_DECAY_RULES
};

/* Bring n parameters into the order of the groups: those with weight decay first, or last. Returns
 * the size of the first group. */
int hf_trainer_groups_make(struct parameter_order_item *out,
                           const struct parameter_order_item *params, int n,
                           enum hf_trainer_groups_rule rule, bool last, const struct model *m);

/* The size of the first group of an optimizer. */
int hf_trainer_groups_first(const struct hf_trainer_optimizer *o);

/* Whether all that are not in the first group are in one. */
bool hf_trainer_groups_are_two(const struct hf_trainer_optimizer *o);

#endif
