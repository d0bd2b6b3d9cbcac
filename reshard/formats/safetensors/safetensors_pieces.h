/*
 * reshard/formats/safetensors/safetensors_pieces.h - safetensors files as pieces: for the verbs
 * that look at checkpoints of any format. Imports read them through
 * reshard/formats/safetensors/safetensors.h.
 */
#ifndef RESHARD_FORMATS_SAFETENSORS_SAFETENSORS_PIECES_H
#define RESHARD_FORMATS_SAFETENSORS_SAFETENSORS_PIECES_H

#include "layout/model.h"
#include "reshard/formats/pieces/piece.h"

/* Whether `path` is a file NAME.safetensors, or a folder with model.safetensors or its index. */
bool safetensors_pieces_detect(const char *path);

/* Add each tensor, under its name in the file, as a weight; with a model also those that have the
 * names of its modules (reshard/formats/pieces/module_piece.h). m may be NULL. Those in FP8 and
 * MXFP4 that have scales are decoded (safetensors_dequantize). */
tp_status safetensors_pieces_read(struct piece_source *s, const struct model *m,
                                  struct tp_err *err);

#endif
