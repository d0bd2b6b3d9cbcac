/*
 * reshard/formats/hf_trainer/hf_trainer_search.h - the search for the parameters of an optimizer's
 * states: what is known, and whether a parameter may be that of a state. Inside
 * reshard/formats/hf_trainer/ only.
 */
#ifndef RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_SEARCH_H
#define RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_SEARCH_H

#include "layout/model.h"
#include "layout/parameter_order.h"
#include "reshard/formats/hf_trainer/hf_trainer_optimizer.h"

/* What is known of the program that saved the optimizer. */
struct hf_trainer_program {
    bool own_groups;    /* it makes them itself: it is not Trainer */
    bool other_version; /* config.json may be of another version of transformers than the program's:
                           it was saved before */
};

struct hf_trainer_search {
    const struct hf_trainer_optimizer *o;
    const struct hf_trainer_program *program;
    const struct model *model;
    const struct tensor *tensors; /* of the model */
    int n_tensors;
    struct tp_err *why; /* set where the search ends without a result */
};

/* The first state that has not the shape of its parameter, params[i], or is missing, if these are
 * looked for; o->n: none. */
int hf_trainer_search_misfit(const struct hf_trainer_optimizer *o,
                             const struct parameter_order_item *params, bool missing);

/* Set *s->why: state i has another shape than its parameter p, or is missing. */
void hf_trainer_search_refuse_state(const struct hf_trainer_search *s, int i,
                                    const struct parameter_order_item *p);

/* Fail: the arena has no memory for the parameters. */
static inline tp_status hf_trainer_search_no_memory(const struct hf_trainer_optimizer *o,
                                                    struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its %d parameters", o->path, o->n);
}

#endif
