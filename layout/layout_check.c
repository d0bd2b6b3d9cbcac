/* layout/layout_check.c - see layout/layout_check.h. */
#include "layout/layout_check.h"

#include <stdbool.h>
#include <stdio.h>

/* Whether tp ranks cannot share t; `why` gets the reason. */
static bool refuses_tp(const struct tensor *t, int tp, char *why, size_t size)
{
    const struct placement *p = &t->placement;
    int parts = p->blocks - (p->first_block > 0); /* of equal length */
    int64_t units;

    if (p->dim < 0)
        return false;
    units = tensor_units(t);
    if ((t->shape[p->dim] - p->first_block) % (parts * (p->uneven ? 1 : p->unit)) != 0) {
        snprintf(why, size, "its axis %d of %lld is not a multiple of %d x %lld", p->dim,
                 (long long)(t->shape[p->dim] - p->first_block), parts, (long long)p->unit);
        return true;
    }
    if (p->uneven || units % tp == 0 || (p->replicate && units > 0 && tp % units == 0))
        return false;
    if (p->unit > 1)
        snprintf(why, size, "its %lld %sheads of %lld on axis %d are not divisible by tp %d",
                 (long long)units, p->replicate ? "key-value " : "", (long long)p->unit, p->dim,
                 tp);
    else
        snprintf(why, size, "its %lld features on axis %d are not divisible by tp %d",
                 (long long)units, p->dim, tp);
    return true;
}

static tp_status fail_layout(const struct spec *spec, const char *what, const char *why,
                             struct tp_err *err)
{
    char text[SPEC_TEXT_MAX];

    return tp_fail(err, TP_E_LAYOUT, "layout %s does not fit %s: %s", spec_format(text, spec), what,
                   why);
}

/* ep divides the ranks of dp x cp, and the experts; the tensors of experts say of how many there
 * are. */
static tp_status check_ep(const struct spec *spec, const struct tensor_kinds *kinds,
                          struct tp_err *err)
{
    char why[160] = "ep needs a mixture of experts with a tensor for each expert";
    int experts = 0;

    if (spec->ep <= 1)
        return TP_OK;
    for (int i = 0; i < kinds->n; i++)
        if (kinds->tensors[i].placement.experts)
            experts = kinds->tensors[i].placement.experts;
    if (experts && experts % spec->ep)
        snprintf(why, sizeof why, "its %d experts are not divisible by ep %d", experts, spec->ep);
    else if (spec->dp * spec->cp % spec->ep)
        snprintf(why, sizeof why, "ep %d does not divide the %d ranks of dp x cp", spec->ep,
                 spec->dp * spec->cp);
    else if (experts)
        return TP_OK;
    return fail_layout(spec, "the model", why, err);
}

tp_status layout_check(const struct spec *spec, int n_layers, const struct tensor_kinds *kinds,
                       struct tp_err *err)
{
    int64_t stages = (int64_t)spec->pp * spec->vpp;
    char why[160];

    if (spec->vpp > 1 && spec->pp == 1)
        return fail_layout(spec, "any model", "vpp needs pp of at least 2", err);
    if (stages > n_layers && stages > 1) {
        snprintf(why, sizeof why, "its %d layers are fewer than its %lld stages", n_layers,
                 (long long)stages);
        return fail_layout(spec, "the model", why, err);
    }
    if (check_ep(spec, kinds, err))
        return err->status;
    for (int i = 0; i < kinds->n; i++)
        if (refuses_tp(&kinds->tensors[i], spec->tp, why, sizeof why))
            return fail_layout(spec, kinds->tensors[i].name, why, err);
    return TP_OK;
}
