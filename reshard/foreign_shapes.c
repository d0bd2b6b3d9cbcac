/* reshard/foreign_shapes.c - see reshard/foreign_shapes.h. */
#include "reshard/foreign_shapes.h"

#include <string.h>

#include "layout/model_tensors.h"
#include "reshard/formats/foreign.h"
#include "reshard/formats/foreign_model.h"

/* Find a tensor of the source. *found is whether it has one; its shape must be that of t. */
static tp_status check_tensor(bool *found, const struct piece_source *s, const char *group,
                              const struct tensor *t, struct tp_err *err)
{
    const int i = foreign_find(s, group, t->name);
    const struct piece *p = i < 0 ? NULL : piece_source_tensor(s, i).pieces;
    char has[BOX_TEXT_MAX], says[BOX_TEXT_MAX];

    *found = p != NULL;
    if (!p ||
        (p->ndim == t->ndim && memcmp(p->shape, t->shape, sizeof *t->shape * (size_t)t->ndim) == 0))
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s/%s is %s, but config.json says %s",
                   piece_source_path(s), group, t->name,
                   box_format_shape(has, sizeof has, p->ndim, p->shape),
                   box_format_shape(says, sizeof says, t->ndim, t->shape));
}

/* Weights, or masters of which they are made. If there is none at all, the names are not those of
 * this family, and nothing can be said. */
static tp_status check_weights(bool *proved, const struct piece_source *s,
                               const struct tensor *params, int n, struct tp_err *err)
{
    const struct tensor *missing = NULL;
    int n_found = 0;
    bool weight, master;
    tp_status st = TP_OK;

    for (int i = 0; i < n && !st; i++) {
        st = check_tensor(&weight, s, GROUP_PARAM, &params[i], err);
        if (!st)
            st = check_tensor(&master, s, GROUP_MASTER, &params[i], err);
        n_found += !st && (weight || master);
        if (!st && !weight && !master && !missing)
            missing = &params[i];
    }
    if (!st && missing && n_found && n_found == n - 1)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: tensor %s is missing, which the model of config.json has",
                     piece_source_path(s), missing->name);
    else if (!st && missing && n_found)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: tensor %s is missing, and so are %d more that the model of config.json "
                     "has",
                     piece_source_path(s), missing->name, n - n_found - 1);
    *proved = !st && !missing;
    return st;
}

static tp_status check_all(bool *proved, const struct piece_source *s, const struct tensor *params,
                           int n, struct tp_err *err)
{
    static const char *const groups[] = { GROUP_EXP_AVG, GROUP_EXP_AVG_SQ };
    tp_status st = check_weights(proved, s, params, n, err);
    bool ignored;

    for (int i = 0; i < n && !st; i++)
        for (size_t g = 0; g < sizeof groups / sizeof *groups && !st; g++)
            st = check_tensor(&ignored, s, groups[g], &params[i], err);
    return st;
}

tp_status foreign_shapes_check(bool *proved, struct foreign_contents *c,
                               const struct foreign_contents_request *q, struct tp_err *err)
{
    const char *path = piece_source_path(c->source);
    struct tp_err ignored = { 0 };
    char dir[PATH_MAX], method[QUANT_METHOD_MAX];
    struct tensor *params;
    struct model m;
    int n;

    *proved = false;
    if ((!q->config && !foreign_model_folder(dir, path)) ||
        foreign_model_config(&m, q->config ? q->config : dir, false, &c->arena, &ignored) ||
        (foreign_model_is_quantized(method, &m) &&
         piece_source_decoded(c->source) == 0) || /* its tensors are others */
        model_params(&params, &n, &m, DTYPE_F32, &c->arena, &ignored))
        return TP_OK;
    return check_all(proved, c->source, params, n, err);
}
