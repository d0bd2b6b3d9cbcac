/*
 * reshard/formats/torch/dcp_extras.h - objects of a DCP checkpoint, which mean the same at every
 * layout: a schedule's state, counters, options of the optimizer. A DCP target gets their bytes.
 * Inside reshard/formats/torch/ only.
 */
#ifndef RESHARD_FORMATS_TORCH_DCP_EXTRAS_H
#define RESHARD_FORMATS_TORCH_DCP_EXTRAS_H

#include "reshard/formats/torch/dcp_items.h"
#include "reshard/formats/torch/torch_pieces.h"

/* Note an object of file number `file` as left behind, or as an extra; and tell s the options of
 * AdamW that it has. */
tp_status dcp_extras_read(struct piece_source *s, int file, const struct dcp_item *item,
                          struct tp_err *err);

/* Add those of `from`, which may be NULL, to the file of rank 0. *groups says whether the options
 * of the optimizer are among them. */
tp_status dcp_extras_write(struct dcp_items *d, bool *groups, struct piece_source *from,
                           struct tp_err *err);

#endif
