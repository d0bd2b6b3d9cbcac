/*
 * reshard/formats/torch/torchtitan_piece.h - pieces of torchtitan's tensors, which become those of
 * the model's; Meta's own have the same names.
 */
#ifndef RESHARD_FORMATS_TORCH_TORCHTITAN_PIECE_H
#define RESHARD_FORMATS_TORCH_TORCHTITAN_PIECE_H

#include "reshard/formats/pieces/piece.h"
#include "reshard/formats/torch/torchtitan_map.h"

/* Add a piece: its rows in the order that they have here, of stacked experts what it has of each,
 * and of query, key and value in one tensor those. TP_E_CORRUPT: as piece_source_add, or its shape
 * is not that of the model's. */
tp_status torchtitan_piece_add(struct piece_source *s, const struct model *m,
                               const struct torchtitan_map_tensor *t, const struct piece *p,
                               struct tp_err *err);

#endif
