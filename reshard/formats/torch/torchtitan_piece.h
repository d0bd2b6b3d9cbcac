/*
 * reshard/formats/torch/torchtitan_piece.h - pieces of torchtitan's tensors, which become those of
 * the model's, and the other way; Meta's own have the same names.
 */
#ifndef RESHARD_FORMATS_TORCH_TORCHTITAN_PIECE_H
#define RESHARD_FORMATS_TORCH_TORCHTITAN_PIECE_H

#include "reshard/formats/pieces/piece.h"
#include "reshard/formats/torch/torch_target.h"
#include "reshard/formats/torch/torchtitan_map.h"

/* Add a piece: its rows in the order that they have here, of stacked experts what it has of each,
 * and of query, key and value in one tensor those. TP_E_CORRUPT: as piece_source_add, or its shape
 * is not that of the model's. */
tp_status torchtitan_piece_add(struct piece_source *s, const struct model *m,
                               const struct torchtitan_map_tensor *t, const struct piece *p,
                               struct tp_err *err);

/* The other way, where rows are in torchtitan's order (torchtitan_map_has_pairs): push tensor
 * number `tensor`, with the rows of a box in that order, as torch_target_box does. */
tp_status torchtitan_piece_push_pairs(struct torch_target *x, int tensor, enum dtype dtype,
                                      const struct box *box, int64_t head_dim, struct tp_err *err);

#endif
