/*
 * reshard/formats/torch/dcp_adamw.h - AdamW's options in a new DCP checkpoint, each an object.
 * Inside reshard/formats/torch/ only.
 */
#ifndef RESHARD_FORMATS_TORCH_DCP_ADAMW_H
#define RESHARD_FORMATS_TORCH_DCP_ADAMW_H

#include "reshard/formats/export_writer.h"
#include "reshard/formats/torch/dcp_items.h"

/* One group of all parameters: "optim.param_groups.0.lr". */
tp_status dcp_adamw_add_group(struct dcp_items *d, const struct export_contents *q,
                              struct tp_err *err);

/* Two groups, as the Trainer of transformers makes them: norms and biases are in the second one,
 * without weight decay. They have what a schedule adds. */
tp_status dcp_adamw_add_groups(struct dcp_items *d, const struct export_contents *q,
                               const char *optimizer, struct tp_err *err);

/* torchtitan has the options of each parameter: "optimizer.param_groups.NAME.lr", and with them
 * what its schedule adds. They are the same for all, so they are stored once: *stored is -1 at
 * first, and then the number of the first item. */
tp_status dcp_adamw_add_param(struct dcp_items *d, const struct export_contents *q,
                              const char *name, int *stored, struct tp_err *err);

#endif
