/*
 * reshard/formats/megatron/torch_dist_flat.h - Megatron-core's distributed optimizer in torch_dist
 * checkpoints when its flat buffers were saved as they were:
 *
 *     dp_reshardable           a tensor for each bucket, cut at parameters and data-parallel ranks
 *     dp_zero_gather_scatter   one object for each rank, with whole buffers as in distrib_optim.pt
 *
 * Neither has names; positions follow from the model and the sizes of the job. With expert
 * parallelism there are two optimizers: the names of the layers' begin with "chained_0.", those of
 * the experts' with "chained_1.".
 */
#ifndef RESHARD_FORMATS_MEGATRON_TORCH_DIST_FLAT_H
#define RESHARD_FORMATS_MEGATRON_TORCH_DIST_FLAT_H

#include "reshard/formats/megatron/megatron_rank.h"
#include "reshard/formats/torch/dcp_metadata.h"

/* Whether an item belongs to such an optimizer. */
bool torch_dist_flat_is(const struct dcp_item *item);

/* Whether it has the whole buffers of a rank, as dp_zero_gather_scatter. */
bool torch_dist_flat_is_whole(const struct dcp_item *item);

/* Add the items that do. r has source, dir, args, and the map with the padded vocabulary.
 * TP_E_USAGE: its experts are stored in a way that is not read. */
tp_status torch_dist_flat_read(struct megatron_rank *r, const struct dcp_item *items, int n,
                               struct tp_err *err);

#endif
