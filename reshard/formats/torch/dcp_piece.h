/*
 * reshard/formats/torch/dcp_piece.h - an item of a DCP checkpoint that is read, as a piece.
 */
#ifndef RESHARD_FORMATS_TORCH_DCP_PIECE_H
#define RESHARD_FORMATS_TORCH_DCP_PIECE_H

#include "reshard/formats/pieces/piece.h"
#include "reshard/formats/torch/dcp_metadata.h"

/* What is stored of a tensor: *out is a whole tensor of this group with the name, the shape and the
 * type of the item's box, and the caller gives it its place in the whole one. group and the item's
 * name are borrowed. TP_E_CORRUPT: it has another shape or type than .metadata says, or one that is
 * not supported. */
tp_status dcp_piece_read(struct piece *out, struct piece_source *s, const struct dcp_item *item,
                         const char *group, struct tp_err *err);

#endif
