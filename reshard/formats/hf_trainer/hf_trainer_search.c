/* reshard/formats/hf_trainer/hf_trainer_search.c - see
 * reshard/formats/hf_trainer/hf_trainer_search.h. */
#include "reshard/formats/hf_trainer/hf_trainer_search.h"

#include <string.h>

/* Whether the moments of state i may be those of a parameter. */
static bool fits(const struct hf_trainer_state *t, const struct parameter_order_item *p)
{
    int64_t shape[BOX_NDIM_MAX];
    const int ndim = parameter_order_shape(shape, p);

    return t->ndim < 0 ||
           (t->ndim == ndim && memcmp(t->shape, shape, sizeof *shape * (size_t)ndim) == 0);
}

void hf_trainer_search_refuse_state(const struct hf_trainer_search *s, int i,
                                    const struct parameter_order_item *p)
{
    const struct hf_trainer_state *t = &s->o->states[i];
    const char *other = hf_trainer_optimizer_other(s->o, t->value);
    char has[BOX_TEXT_MAX], wants[BOX_TEXT_MAX];
    int64_t shape[BOX_NDIM_MAX];
    const int ndim = parameter_order_shape(shape, p);

    if (t->ndim < 0)
        tp_fail(s->why, TP_E_USAGE, "%s: has no moments of parameter %d, %s, %s%s", s->o->path, i,
                p->tensor->name, other ? "but " : "as if it was never trained", other ? other : "");
    else if (other)
        tp_fail(s->why, TP_E_USAGE,
                "%s: the moments of parameter %d, %s, have another shape than it, and it has %s",
                s->o->path, i, p->tensor->name, other);
    else
        tp_fail(s->why, TP_E_CORRUPT,
                "%s: the moments of parameter %d are %s, but in transformers' order it is %s, "
                "which config.json says is %s",
                s->o->path, i, box_format_shape(has, sizeof has, t->ndim, t->shape),
                p->tensor->name, box_format_shape(wants, sizeof wants, ndim, shape));
}

int hf_trainer_search_misfit(const struct hf_trainer_optimizer *o,
                             const struct parameter_order_item *params, bool missing)
{
    int i = 0;

    while (i < o->n && fits(&o->states[i], &params[i]) && !(missing && o->states[i].ndim < 0))
        i++;
    return i;
}
