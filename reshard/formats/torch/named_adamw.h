/*
 * reshard/formats/torch/named_adamw.h - the whole state of an optimizer in a file of torch.save, by
 * the names of parameters, as FSDP.optim_state_dict and get_optimizer_state_dict return it. Inside
 * reshard/formats/ only.
 */
#ifndef RESHARD_FORMATS_TORCH_NAMED_ADAMW_H
#define RESHARD_FORMATS_TORCH_NAMED_ADAMW_H

#include "layout/model.h"
#include "reshard/formats/torch/torch_pieces.h"

struct named_adamw {
    const struct pickle_value *root; /* what such a function has returned, in the file */
    const char *title;               /* of it, in what is listed as left behind: "optimizer" */
    const char *prefix;              /* that names may have, and tensors here do not */
};

/* Whether a value is such a state with flatten_optimizer_state_dict: a dict of "state.NAME.exp_avg"
 * and "param_groups.NAME.lr". */
bool named_adamw_is_flat(const struct pickle_value *v);

/* The first name of a parameter, flat or not; NULL: there is none, or no memory in the arena. */
const char *named_adamw_first_name(const struct pickle_value *root, struct arena *arena);

/* Add the state, of a model, which may be NULL. A number in place of a name becomes its digits. */
tp_status named_adamw_read(struct torch_pieces *x, const struct named_adamw *q,
                           const struct model *m, struct tp_err *err);

#endif
