/* reshard/formats/hf_trainer/hf_trainer_groups.c - see
 * reshard/formats/hf_trainer/hf_trainer_groups.h. */
#include "reshard/formats/hf_trainer/hf_trainer_groups.h"

#include <string.h>

#include "layout/family.h"
#include "layout/model_tensors.h"

/* Whether a tensor has weight decay. */
static bool decays(enum hf_trainer_groups_rule rule, const struct model *m, const struct tensor *t)
{
    const bool bias = tensor_role_is_bias(t->role), norm = tensor_role_is_norm(t->role);

    if (rule == HF_TRAINER_DECAY_ALL || rule == HF_TRAINER_DECAY_NO_BIAS)
        return rule == HF_TRAINER_DECAY_ALL || !bias;
    if (rule == HF_TRAINER_DECAY_NO_LAYER_NORM)
        return !bias && !strstr(t->name, "layer_norm.weight");
    if (rule == HF_TRAINER_DECAY_NO_LAYERNORM && norm && family_of(m)->norm != FAMILY_LAYER_NORM)
        return !strstr(t->name, "layernorm");
    return !bias && !norm;
}

int hf_trainer_groups_make(struct parameter_order_item *out,
                           const struct parameter_order_item *params, int n,
                           enum hf_trainer_groups_rule rule, bool last, const struct model *m)
{
    int n_out = 0, n_first = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++)
            if (decays(rule, m, params[i].tensor) == ((pass == 0) != last))
                out[n_out++] = params[i];
        n_first = pass ? n_first : n_out;
    }
    return n_first;
}

int hf_trainer_groups_first(const struct hf_trainer_optimizer *o)
{
    int n = 0;

    while (n < o->n && o->states[n].group == 0)
        n++;
    return n;
}

bool hf_trainer_groups_are_two(const struct hf_trainer_optimizer *o)
{
    const int first = hf_trainer_groups_first(o);

    return first == o->n || o->states[first].group == o->states[o->n - 1].group;
}
