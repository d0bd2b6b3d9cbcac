/*
 * reshard/formats/torch/dcp_extras.h - objects of a DCP checkpoint, which mean the same at every
 * layout: a schedule's state, counters, options of the optimizer; tensors that are not part of the
 * model; and such files beside it. A DCP target gets their bytes.
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

/* The same of a box of a tensor that is not part of the model. */
tp_status dcp_extras_leave_tensor(struct piece_source *s, const struct dcp_item *item,
                                  struct tp_err *err);

/* Note a file beside the tensors, which is copied, as an extra; and whether number i of what was
 * left behind is one. */
tp_status dcp_extras_leave_file(struct piece_source *s, const char *name, struct tp_err *err);
bool dcp_extras_is_file(const struct piece_source *s, int i);

/* Where objects go: with the weights, or with the optimizer's state, which may be the same items.
 */
struct dcp_extras_target {
    struct dcp_items *weights, *state;
    const char *optimizer; /* how its names begin: "optim" */
    bool renames;          /* parameters have other names than in the source, so the options of
                              groups, which name them, are not written */
};

/* Add the objects of `from`, which may be NULL, to the file of rank 0. *groups says whether the
 * options of the optimizer are among them. */
tp_status dcp_extras_write(const struct dcp_extras_target *to, bool *groups,
                           struct piece_source *from, struct tp_err *err);

#endif
