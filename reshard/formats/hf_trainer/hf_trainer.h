/*
 * reshard/formats/hf_trainer/hf_trainer.h - the folder checkpoint-N of transformers' Trainer, of
 * one process or of several with the same weights (DDP): model.safetensors or pytorch_model.bin, or
 * their parts, and optimizer.pt. TRL, Axolotl and LLaMA-Factory write such folders, too.
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

/* Write such a folder, from which Trainer.train(resume_from_checkpoint=...) of transformers 5
 * continues: weights, optimizer.pt with the names of the parameters, scheduler.pt and
 * trainer_state.json. A row of reshard/formats/export_format.h. TP_E_USAGE: there are no moments,
 * or the model is of no family. */
tp_status hf_trainer_export_create(struct export_writer *w, const struct export_contents *q,
                                   struct tp_err *err);

#endif
