/*
 * reshard/formats/meta/meta.h - the checkpoints of Llama that Meta publishes and its own code
 * loads: a file for each rank of tensor parallelism, without an optimizer.
 *
 *     params.json              sizes, as the arguments of Meta's model
 *     consolidated.NN.pth      a dict from Meta's names to what rank NN has of each tensor
 *
 * Linear layers are cut as by Megatron-LM. The embedding is cut by columns in Llama 1 and 2
 * (fairscale's ParallelEmbedding), by rows since Llama 3 (VocabParallelEmbedding); which it is, the
 * shapes say. Rows of a head's queries and keys have the order that torchtitan's have
 * (reshard/formats/torch/torchtitan_map.h). Mistral publishes the same as one
 * consolidated.safetensors.
 */
#ifndef RESHARD_FORMATS_META_META_H
#define RESHARD_FORMATS_META_META_H

#include "layout/model.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/pieces/piece.h"

/* Where there are files of Hugging Face too, these are the model's. */
bool meta_detect(const char *path);

/* Add the tensors of all ranks' files. The model is needed, because its shapes say how many ranks
 * there are. */
tp_status meta_read(struct piece_source *s, const struct model *m, struct tp_err *err);

/* Make a config.json of params.json and the shapes in the first file (meta_config.c). */
tp_status meta_config(const char **text, const char **note, struct piece_source *s,
                      struct tp_err *err);

/* Write one for the layout's tp: a row of reshard/formats/export_format.h. TP_E_USAGE: Meta's code
 * has no such model. TP_E_LAYOUT: tp does not divide it. */
tp_status meta_export_create(struct export_writer *w, const struct export_contents *q,
                             struct tp_err *err);

#endif
