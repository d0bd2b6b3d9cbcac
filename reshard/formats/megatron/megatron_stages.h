/*
 * reshard/formats/megatron/megatron_stages.h - which layers a model chunk of a pipeline stage has
 * (megatron/core/transformer/transformer_block.py, get_num_layers_to_build).
 *
 * Stages have equally many, unless the program's arguments give the first and the last stage other
 * numbers, count the embedding and the loss as a layer each, or give each stage its number
 * (reshard/formats/megatron/pipeline_layout.h).
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_STAGES_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_STAGES_H

#include "reshard/formats/megatron/megatron_args.h"

struct megatron_stage_layers {
    int first, n; /* layers first .. first + n - 1 of the model */
};

/* TP_E_USAGE: the stages of the arguments do not have all `layers` of the model. `path` is for
 * messages. */
tp_status megatron_stages_check(const struct megatron_args *args, int layers, const char *path,
                                struct tp_err *err);

/* Those of stage pp_rank's chunk, when the check has passed. */
struct megatron_stage_layers megatron_stages_find(const struct megatron_args *args, int layers,
                                                  int pp_rank, int chunk);

#endif
