/*
 * reshard/formats/hf_trainer/hf_trainer.h - the folder checkpoint-N of transformers' Trainer, of
 * one process or of several with the same weights (DDP): model.safetensors or pytorch_model.bin, or
 * their parts, and optimizer.pt. TRL, Axolotl and LLaMA-Factory write such folders, too. And that
 * of Accelerate's save_state of such processes, with optimizer.bin; with FSDP it is another one
 * (reshard/formats/torch/accelerate.h).
 */
#ifndef RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_H
#define RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_H

#include "layout/model.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/pieces/piece.h"

/* Whether it has an optimizer.pt. */
bool hf_trainer_detect(const char *path);

/* Add the weights, and AdamW's state if it is known whose it is, which needs the model; else it is
 * refused (piece_source_refuse_state). */
tp_status hf_trainer_read(struct piece_source *s, const struct model *m, struct tp_err *err);

/* The same of Accelerate: it has an optimizer.bin, or only a scheduler.bin, which is refused. */
bool hf_trainer_accelerate_detect(const char *path);
tp_status hf_trainer_accelerate_read(struct piece_source *s, const struct model *m,
                                     struct tp_err *err);

/* Write a folder of Trainer, from which Trainer.train(resume_from_checkpoint=...) of transformers 5
 * continues: weights, optimizer.pt with the names of the parameters, scheduler.pt and
 * trainer_state.json. A row of reshard/formats/export_format.h. TP_E_USAGE: there are no moments,
 * or the model is of no family. */
tp_status hf_trainer_export_create(struct export_writer *w, const struct export_contents *q,
                                   struct tp_err *err);

/* Write such a folder that load_state of Accelerate loads: model.safetensors and optimizer.bin.
 * Where the source is one too, the groups of its optimizer are kept, and the files beside it are
 * copied. TP_E_USAGE: also where modules of transformers 5 have other names of tensors. */
tp_status hf_trainer_accelerate_export_create(struct export_writer *w,
                                              const struct export_contents *q, struct tp_err *err);

#endif
