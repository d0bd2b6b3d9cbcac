/*
 * reshard/formats/deepspeed/model_parallel.h - DeepSpeed with tensor and pipeline parallelism, as
 * EleutherAI's GPT-NeoX and Megatron-DeepSpeed save: inside reshard/formats/deepspeed/ only.
 *
 *     layer_XX-model_YY-model_states.pt      weights of module XX on tensor-parallel rank YY, where
 *                                            the model is a PipelineModule
 *     mp_rank_MM_model_states.pt             shapes of rank MM = stage * tp + tensor-parallel rank,
 *                                            and its weights, where the model is no PipelineModule
 *     [bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt     partition D of that rank's optimizer
 *
 * Each rank's parameters are flattened and cut as without model parallelism (deepspeed_zero.c), and
 * are rows or columns of the model's tensors as Megatron cuts them (megatron_map.h).
 */
#ifndef RESHARD_FORMATS_DEEPSPEED_MODEL_PARALLEL_H
#define RESHARD_FORMATS_DEEPSPEED_MODEL_PARALLEL_H

#include "reshard/formats/deepspeed/deepspeed_state.h"

/* Whether a parameter of d->params has a name of such a program. */
bool model_parallel_names(const struct deepspeed_state *d);

/* Whether the folder is of such a program, or of another one with model parallelism. */
bool model_parallel_is(const struct deepspeed_state *d);

/* Set d->qkv_ranks by the arguments that are in the model states. Megatron-DeepSpeed has that order
 * since it has FPDT (December 2024), and says checkpoint_version 3.0 in both. */
void model_parallel_order(struct deepspeed_state *d, const struct pickle_value *root);

/* Add everything of the folder. TP_E_USAGE: the model is not known, or it has other sizes.
 * TP_E_CORRUPT: ranks disagree. */
tp_status model_parallel_read(struct deepspeed_state *d, struct tp_err *err);

/* Before the folders of a Universal checkpoint are read, whose tensors are whole: find out what
 * they are, if the model is known and their names are of such a program. */
tp_status model_parallel_open_universal(struct deepspeed_state *d, struct tp_err *err);

#endif
