/*
 * reshard/formats/megatron/fsdp_dtensor_root.h - what a fsdp_dtensor checkpoint has beside tensors,
 * as the root dict of Megatron-LM's other formats.
 *
 * There each value is an object of its own:
 *
 *     args, iteration                                             values of the root
 *     opt_param_scheduler.max_lr                                  of a dict in it
 *     optimizer.param_to_group_meta.module.module.NAME.betas      options of a parameter
 *     rng_state.(0, 0).0.torch_rng_state, rerun_state_machine...  state of ranks
 */
#ifndef RESHARD_FORMATS_MEGATRON_FSDP_DTENSOR_ROOT_H
#define RESHARD_FORMATS_MEGATRON_FSDP_DTENSOR_ROOT_H

#include <limits.h>

#include "reshard/formats/torch/torch_pieces.h"

/* Options of each parameter's group. */
#define FSDP_DTENSOR_GROUPS "optimizer.param_to_group_meta."

/* Read the root of the folder `dir`: values that are plain (torch/pickle_copy.h),
 * "opt_param_scheduler", and "optimizer" with one entry in "param_groups", the options of a
 * parameter with weight decay. x->root becomes "args", which is not in it; NULL: there are none,
 * because the program was not Megatron-LM. x has its source and nothing else; close it also after a
 * failure. `path` becomes that of the file with the arguments, or of .metadata. */
tp_status fsdp_dtensor_root_open(const struct pickle_value **root, struct torch_pieces *x,
                                 char path[PATH_MAX], const char *dir, struct tp_err *err);

/* Whether an object is in the root, or is one of the options of parameters. */
bool fsdp_dtensor_root_has(const char *name);

#endif
