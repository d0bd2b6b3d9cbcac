/*
 * reshard/formats/torch/torch_bin.h - pytorch_model.bin, or its parts with
 * pytorch_model.bin.index.json: Hugging Face's files of before safetensors, a dict from names to
 * tensors.
 */
#ifndef RESHARD_FORMATS_TORCH_TORCH_BIN_H
#define RESHARD_FORMATS_TORCH_TORCH_BIN_H

#include "layout/model.h"
#include "reshard/formats/torch/torch_pieces.h"

/* Where there are safetensors too, these are the model's, as for transformers: save_pretrained
 * leaves a .bin of earlier weights in its folder. */
bool torch_bin_detect(const char *path);

/* Add everything of the folder to s. m may be NULL. */
tp_status torch_bin_read(struct piece_source *s, const struct model *m, struct tp_err *err);

/* Add the tensors of file number `file` of s, which is a dict from names to tensors. */
tp_status torch_bin_read_file(struct piece_source *s, const struct model *m, int file,
                              struct tp_err *err);

/* Add the tensors of a dict from names to tensors, a value of x, by their names behind the prefix.
 * Those with another name, and what is no tensor, stay behind. */
tp_status torch_bin_read_dict(struct torch_pieces *x, const struct pickle_value *dict,
                              const char *prefix, const struct model *m, struct tp_err *err);

#endif
