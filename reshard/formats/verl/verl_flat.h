/*
 * reshard/formats/verl/verl_flat.h - writes the flat moments of FSDP1's units. Inside
 * reshard/formats/verl/ only.
 */
#ifndef RESHARD_FORMATS_VERL_VERL_FLAT_H
#define RESHARD_FORMATS_VERL_VERL_FLAT_H

#include "reshard/formats/torch/module_param.h"
#include "reshard/formats/verl/verl_units.h"

/* What units are made of: params[i] is parameter i, and the group is a moment. */
struct verl_flat {
    const struct verl_units *units;
    const struct module_param *const *params;
    const char *group;
};

/* Push the part that shard number `shard` has of a unit, padded with zeroes: a tensor of one
 * axis. */
tp_status verl_flat_push(struct torch_target *x, const struct verl_flat *flat, int unit, int shard,
                         struct tp_err *err);

#endif
