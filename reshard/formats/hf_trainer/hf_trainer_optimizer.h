/*
 * reshard/formats/hf_trainer/hf_trainer_optimizer.h - the state_dict() of an optimizer of PyTorch,
 * which knows parameters by numbers, as optimizer.pt has it, and Accelerate's optimizer.bin. Inside
 * reshard/formats/hf_trainer/ only.
 */
#ifndef RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_OPTIMIZER_H
#define RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_OPTIMIZER_H

#include "layout/parameter_order.h"
#include "reshard/formats/torch/torch_pieces.h"

/* The state of a parameter. */
struct hf_trainer_state {
    const struct pickle_value *value; /* a dict; NULL: the parameter has none */
    const char *name;                 /* of the parameter; NULL: the file has no names */
    int group;
    int ndim; /* of its moments; -1: it does not have both */
    int64_t shape[BOX_NDIM_MAX];
};

struct hf_trainer_optimizer {
    struct torch_pieces *file;
    const char *path, *title;           /* of the file, and of the optimizer in it */
    const struct pickle_value *weights; /* as of struct numbered_adamw */
    const char *prefix;
    const struct pickle_value *groups; /* param_groups, a list */
    struct hf_trainer_state *states;   /* by number: those of the first group come first */
    int n;
    bool named;          /* all have names */
    bool adamw;          /* some have both moments */
    const char *unread;  /* why moments are not read, "are ..."; NULL: they are */
    struct arena *arena; /* the source's */
};

/* The groups of an optimizer as they are, for a target that has the same parameters: the names of
 * the parameters by their numbers, each with a 0 byte after it, another 0 byte, and the list
 * param_groups as pickle_write_pushed takes it. n 0: it cannot be, because it has values that are
 * not plain. The bytes are in the arena. */
tp_status hf_trainer_optimizer_groups(struct piece_extra *out, const struct hf_trainer_optimizer *o,
                                      const struct parameter_order_item *params,
                                      struct tp_err *err);

/* What an entry of a state has that AdamW's has not, for messages: "RMS of another optimizer than
 * AdamW". NULL: nothing, so it has no entry but AdamW's, or none. */
const char *hf_trainer_optimizer_other(const struct hf_trainer_optimizer *o,
                                       const struct pickle_value *state);

/* Read `root`, a value of o->file. *why: the file is intact, but no optimizer's, or not AdamW's;
 * its status is TP_OK otherwise. */
tp_status hf_trainer_optimizer_read(struct hf_trainer_optimizer *o, const struct pickle_value *root,
                                    struct tp_err *why, struct tp_err *err);

#endif
