/*
 * reshard/formats/megatron/torch_dist_cut.h - Megatron-core's distributed optimizer in torch_dist
 * checkpoints as fully_sharded_model_space, which versions 0.8 to 0.14 write by default: tensors
 * have the model's names, but each rank's part of one is flat.
 *
 * [layers, rows, columns], cut over 2 tensor-parallel ranks along the rows, is stored as
 * [layers, 2, 1, elements of a part]: a grid of parts, of which data-parallel ranks have intervals.
 */
#ifndef RESHARD_FORMATS_MEGATRON_TORCH_DIST_CUT_H
#define RESHARD_FORMATS_MEGATRON_TORCH_DIST_CUT_H

#include "reshard/formats/pieces/piece.h"
#include "reshard/formats/torch/dcp_metadata.h"

/* Whether an item is an interval of such a part. */
bool torch_dist_cut_is(const struct dcp_item *item);

/* Make an item of a tensor one of such a part, whole. Its box is a part of a grid. */
void torch_dist_cut_make(struct dcp_item *item);

/* The part of the tensor that was cut, with the tensor's shape. False: the item is none of it. */
bool torch_dist_cut_part(struct dcp_item *part, const struct dcp_item *item);

/* The next box of the interval: *at is what of it is done, 0 at first. `box` becomes an item of the
 * tensor that was cut, and `piece` the same of `stored`, which is the interval as it lies in the
 * file. False: all is done. */
bool torch_dist_cut_next(struct dcp_item *box, struct piece *piece, int64_t *at,
                         const struct dcp_item *item, const struct dcp_item *part,
                         const struct piece *stored);

#endif
