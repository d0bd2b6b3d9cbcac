/*
 * reshard/formats/megatron/fused_piece.h - a piece of a whole tensor of Megatron-core, which may be
 * fused, as pieces of the model's tensors.
 */
#ifndef RESHARD_FORMATS_MEGATRON_FUSED_PIECE_H
#define RESHARD_FORMATS_MEGATRON_FUSED_PIECE_H

#include "reshard/formats/megatron/megatron_map.h"
#include "reshard/formats/pieces/piece.h"

struct fused_piece_tensor {
    const char *name;    /* Megatron's, without the layer */
    int layer;           /* -1: of none */
    const char *unknown; /* the group that it gets when the map does not know it */
};

/* Add the rows that p has: its shape and box are those of tensor t, as on one tensor-parallel rank.
 * The padded vocabulary is that of p. A tensor that the map does not know keeps the name of p.
 * TP_E_CORRUPT: it has another shape than the model's. */
tp_status fused_piece_add(struct piece_source *s, struct megatron_map *map, const struct piece *p,
                          const struct fused_piece_tensor *t, struct tp_err *err);

#endif
