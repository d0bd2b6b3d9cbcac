/*
 * reshard/formats/megatron/fsdp_dtensor.h - checkpoints of Megatron-FSDP in Megatron-LM and
 * Megatron-Bridge (--use-megatron-fsdp --ckpt-format fsdp_dtensor): a torch.distributed.checkpoint
 * (reshard/formats/torch/dcp.h) with the names of Megatron-core's modules.
 *
 *     iter_0000100/.metadata, __R_0.distcp
 *
 *     model.module.decoder.layers.3.mlp.linear_fc1.weight_w                              gate
 *     model.module.decoder.layers.3.mlp.linear_fc1.weight_v                              up
 *     optimizer.state.module.module.module.decoder.final_layernorm.weight.exp_avg        a moment
 *
 * Tensors are whole tensors of each layer and expert. Weights are the f32 masters, and there are no
 * others.
 */
#ifndef RESHARD_FORMATS_MEGATRON_FSDP_DTENSOR_H
#define RESHARD_FORMATS_MEGATRON_FSDP_DTENSOR_H

#include "layout/model.h"
#include "reshard/formats/pieces/piece.h"

bool fsdp_dtensor_detect(const char *path);

/* Add everything of the folder to s. The model is needed to split what is fused. Where the program
 * computed in bf16 or fp16, the weights in f32 are masters. */
tp_status fsdp_dtensor_read(struct piece_source *s, const struct model *m, struct tp_err *err);

#endif
