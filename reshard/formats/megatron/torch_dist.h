/*
 * reshard/formats/megatron/torch_dist.h - Megatron-core's torch_dist checkpoints: a
 * torch.distributed.checkpoint (reshard/formats/torch/dcp.h) whose tensors are fused, and whose
 * layers are stacked in one tensor.
 *
 *     iter_0000100/metadata.json, .metadata, __R_N.distcp, common.pt
 *
 * Megatron-Bridge adds run_config.yaml and train_state.pt; NeMo 2 calls the folder "weights"
 * (bridge_args.h).
 */
#ifndef RESHARD_FORMATS_MEGATRON_TORCH_DIST_H
#define RESHARD_FORMATS_MEGATRON_TORCH_DIST_H

#include "layout/model.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/pieces/piece.h"

bool torch_dist_detect(const char *path);

/* Add everything of the folder to s: weights, and the state of the ordinary optimizer or of the
 * distributed one, as fully_reshardable, fully_sharded_model_space, dp_reshardable or
 * dp_zero_gather_scatter. The model is needed to split what is fused. */
tp_status torch_dist_read(struct piece_source *s, const struct model *m, struct tp_err *err);

/* As master_check. TP_E_USAGE also: flat buffers were left behind, because tp and pp of the program
 * are not known. */
tp_status torch_dist_check(struct piece_source *s, struct tp_err *err);

/* Write one, as with the ordinary optimizer, or as the distributed one saves, in the form that the
 * version of Megatron-core loads (megatron_version.h): a row of reshard/formats/export_format.h.
 * Each tensor-parallel and pipeline rank of the layout has a file. Errors as
 * megatron_export_create. */
tp_status torch_dist_export_create(struct export_writer *w, const struct export_contents *q,
                                   struct tp_err *err);

#endif
