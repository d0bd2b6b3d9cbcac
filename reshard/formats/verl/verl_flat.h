/*
 * reshard/formats/verl/verl_flat.h - writes the flat moments of FSDP1's units. Inside
 * reshard/formats/verl/ only.
 */
#ifndef RESHARD_FORMATS_VERL_VERL_FLAT_H
#define RESHARD_FORMATS_VERL_VERL_FLAT_H

#include "reshard/formats/torch/torch_target.h"
#include "reshard/formats/verl/verl_units.h"

/* Push the part that shard number `shard` has of a unit, padded with zeroes: a tensor of one axis.
 * tensors[i] is the number of parameter i in the transfer; all have this type. */
tp_status verl_flat_push(struct torch_target *x, const struct verl_units *u, int unit, int shard,
                         const int *tensors, enum dtype dtype, struct tp_err *err);

#endif
