/*
 * reshard/formats/hf_trainer/numbered_adamw.h - the state of an optimizer in a file of torch.save,
 * by the numbers of parameters, as Optimizer.state_dict() of PyTorch returns it.
 *
 * Which number is which parameter follows from the model (hf_trainer_params.h). named_adamw.h has
 * such a state by names.
 */
#ifndef RESHARD_FORMATS_HF_TRAINER_NUMBERED_ADAMW_H
#define RESHARD_FORMATS_HF_TRAINER_NUMBERED_ADAMW_H

#include "layout/model.h"
#include "reshard/formats/hf_trainer/hf_trainer_params.h"

struct numbered_adamw {
    const struct pickle_value *root; /* what state_dict() has returned, in the file */
    const char *title;               /* of it, in what is listed as left behind: "optimizer.pt" */
    const struct pickle_value *weights; /* state_dict() of its model in the same file, which has the
                                           order of named_parameters(); NULL: another file has it */
    struct hf_trainer_program program;  /* that has saved it */
    const char *prefix;                 /* of its names, that tensors here do not have */
    const char *names_prefix; /* the same of the optimizer's param_names; NULL: they have none */
};

/* Add AdamW's state if it is known whose it is, which needs the model (NULL: there is none); else
 * it is refused (piece_source_refuse_state). */
tp_status numbered_adamw_read(struct torch_pieces *x, const struct numbered_adamw *q,
                              const struct model *m, struct tp_err *err);

#endif
