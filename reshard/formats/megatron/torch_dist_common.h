/*
 * reshard/formats/megatron/torch_dist_common.h - common.pt of a torch_dist checkpoint: the
 * arguments of Megatron-LM, the groups of the optimizer, and how Megatron-core is to ask for the
 * tensors.
 */
#ifndef RESHARD_FORMATS_MEGATRON_TORCH_DIST_COMMON_H
#define RESHARD_FORMATS_MEGATRON_TORCH_DIST_COMMON_H

#include <stdbool.h>

#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_version.h"
#include "reshard/formats/pieces/piece_target.h"

struct torch_dist_common {
    const struct export_contents *contents; /* borrowed */
    struct megatron_args_sizes sizes;
    struct megatron_version version; /* that is to load it */
    bool has_masters;
};

/* Write the file `name`, relative to the folder of `pieces`. TP_E_NOMEM, TP_E_IO. */
tp_status torch_dist_common_write(const struct torch_dist_common *c, struct piece_target *pieces,
                                  const char *name, struct tp_err *err);

#endif
