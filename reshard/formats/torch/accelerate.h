/*
 * reshard/formats/torch/accelerate.h - a checkpoint of Hugging Face Accelerate with FSDP, of
 * `accelerator.save_state` or of the Trainer of transformers. Of sharded state dicts it is a folder
 * with two DCP checkpoints (reshard/formats/torch/dcp.h), pytorch_model_fsdp_0/ of the weights and
 * optimizer_0/, which are read and written; of whole ones, which are read, the files
 * pytorch_model_fsdp.bin and optimizer.bin. Small files are beside them.
 */
#ifndef RESHARD_FORMATS_TORCH_ACCELERATE_H
#define RESHARD_FORMATS_TORCH_ACCELERATE_H

#include "layout/model.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/pieces/piece.h"
#include "reshard/formats/pieces/piece_target.h"

bool accelerate_detect(const char *path);
tp_status accelerate_read(struct piece_source *s, const struct model *m, struct tp_err *err);

/* TP_E_CORRUPT: there is a schedule and no optimizer, which are saved together. TP_E_USAGE: the
 * optimizer has numbers in place of names. */
tp_status accelerate_check(struct piece_source *s, struct tp_err *err);

/* Write the small files that the Trainer wants, beside the tensors: those of the source where it is
 * such a checkpoint; else, where there are moments, a state and a schedule at this step. */
tp_status accelerate_write_files(struct piece_target *pieces, const struct export_contents *q,
                                 struct tp_err *err);

#endif
