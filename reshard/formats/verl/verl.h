/*
 * reshard/formats/verl/verl.h - FSDP checkpoints of verl: files of torch.save for each rank.
 *
 * A folder (`actor`, `critic`, or that of a step of verl's SFT trainer) has of each rank R of W
 *
 *     model_world_size_W_rank_R.pt        model.state_dict()
 *     optim_world_size_W_rank_R.pt        optimizer.state_dict(): parameters have numbers
 *     extra_state_world_size_W_rank_R.pt  schedule and random state
 *
 * and of rank 0 fsdp_config.json (since verl 0.4.1) and huggingface/config.json. With FSDP2 all
 * tensors are DTensors. With FSDP1 weights are, or they are ShardedTensors, and the optimizer has
 * flat buffers. Written from verl/utils/checkpoint/fsdp_checkpoint_manager.py of 0.2 to 0.9.
 */
#ifndef RESHARD_FORMATS_VERL_VERL_H
#define RESHARD_FORMATS_VERL_VERL_H

#include <limits.h>

#include "layout/model.h"
#include "reshard/formats/pieces/piece.h"

/* Whether `path` is such a folder, the folder above it (global_step_N with `actor`), or the one
 * above that, whose latest_checkpointed_iteration.txt names the step. */
bool verl_detect(const char *path);

/* Add the pieces of all ranks. TP_E_CORRUPT: a rank's file is missing or of another save. */
tp_status verl_read(struct piece_source *s, const struct model *m, struct tp_err *err);

/* The text of huggingface/config.json. */
tp_status verl_config(const char **text, const char **note, struct piece_source *s,
                      struct tp_err *err);

/* The folder with the tokenizer, huggingface/. */
tp_status verl_assets(char dir[PATH_MAX], const char *path, struct tp_err *err);

/* As `create` of reshard/formats/export_format.h. The source is of verl too: what is written has
 * its form. TP_E_USAGE: it is not, or the layout has other axes than dp. */
tp_status verl_export_create(struct export_writer *w, const struct export_contents *q,
                             struct tp_err *err);

#endif
