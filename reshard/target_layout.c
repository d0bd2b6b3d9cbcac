/* reshard/target_layout.c - see reshard/target_layout.h. */
#include "reshard/target_layout.h"

#include <string.h>

static tp_status check_from(const struct target_layout_request *q, struct tp_err *err)
{
    const struct spec *is = &q->from->manifest.layout.spec;
    struct spec from;
    char text[SPEC_TEXT_MAX];
    tp_status st = spec_parse(&from, q->from_spec, err);

    if (st)
        return tp_fail_in(err, "--from");
    if (spec_matches(&from, is))
        return TP_OK;
    return tp_fail(err, TP_E_LAYOUT, "%s: has the layout %s, which does not match --from %s",
                   q->from->dir, spec_format(text, is), q->from_spec);
}

/* Choose the tensors to copy, and list them with the types of the target. */
static tp_status choose_tensors(struct target_layout *out, struct tensor **tensors,
                                const struct target_layout_request *q, struct arena *arena,
                                struct tp_err *err)
{
    const struct layout *from = &q->from->manifest.layout;
    size_t room = (size_t)from->n_tensors + 1;
    struct reshard_tensor *list = arena_array(arena, room, sizeof *list);
    int n = 0;

    *tensors = arena_array(arena, room, sizeof **tensors);
    out->ids = arena_array(arena, room, sizeof *out->ids);
    if (!list || !*tensors || !out->ids)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors", q->from->dir);
    for (int i = 0; i < from->n_tensors; i++) {
        const struct tensor *t = &from->tensors[i];
        bool is_param = strcmp(t->group, GROUP_PARAM) == 0;

        if (q->no_optim && !is_param)
            continue;
        (*tensors)[n] = *t;
        if (q->dtype && is_param && dtype_is_float(t->dtype))
            (*tensors)[n].dtype = *q->dtype;
        list[n].name = arena_printf(arena, "%s/%s", t->group, t->name);
        list[n].ndim = t->ndim;
        memcpy(list[n].shape, t->shape, sizeof t->shape);
        if (!list[n].name)
            return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors", q->from->dir);
        out->ids[n++] = i;
    }
    if (n == 0)
        return tp_fail(err, TP_E_USAGE, "%s: has no tensors in the group " GROUP_PARAM,
                       q->from->dir);
    out->tensors = list;
    out->n_tensors = n;
    return TP_OK;
}

tp_status target_layout_make(struct target_layout *out, const struct target_layout_request *q,
                             struct arena *arena, struct tp_err *err)
{
    const struct layout *from = &q->from->manifest.layout;
    struct tensor *tensors = NULL;
    struct spec to;
    tp_status st;

    if (q->from_spec && (st = check_from(q, err)))
        return st;
    st = spec_parse(&to, q->to_spec, err);
    if (st)
        return tp_fail_in(err, "--to");
    out->kept = spec_kept(&to, &from->spec);
    spec_fill(&to, &from->spec);
    if ((st = choose_tensors(out, &tensors, q, arena, err)))
        return st;
    return layout_make(&out->layout, &to, from->n_layers, tensors, out->n_tensors, arena, err);
}
