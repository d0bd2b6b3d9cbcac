/* reshard/formats/torch/module_param.c - see reshard/formats/torch/module_param.h. */
#include "reshard/formats/torch/module_param.h"

#include <string.h>

#include "layout/module_name.h"

static tp_status no_memory(const struct module_param_list *l, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of parameters", l->q->dir);
}

/* ---- listing ---- */

/* From the last one on: the parts of a parameter are of one layer, so near each other. */
static struct module_param *find(const struct module_param_list *l, const char *name)
{
    for (int i = l->n; i-- > 0;)
        if (strcmp(l->params[i].name, name) == 0)
            return &l->params[i];
    return NULL;
}

/* Begin a parameter with the tensor that is its first part. */
static tp_status begin_param(struct module_param_list *l, const struct module_name *name,
                             const struct tensor *t, struct arena *arena, struct tp_err *err)
{
    struct module_param *p = &l->params[l->n++];
    const int parts = name->is_stacked ? 2 * (int)name->shape[0] : 1;

    *p = (struct module_param){ .q = l->q, .name = name->name, .ndim = t->ndim };
    memcpy(p->shape, t->shape, sizeof p->shape);
    if (name->is_stacked) {
        p->ndim = t->ndim + 1;
        memcpy(p->shape, name->shape, sizeof p->shape);
    }
    p->parts = arena_array(arena, (size_t)parts, sizeof *p->parts);
    return p->parts ? TP_OK : no_memory(l, err);
}

/* A weight is a part of a parameter that has the type of its first part. */
static tp_status check_dtype(const struct module_param *p, const struct tensor *t,
                             struct tp_err *err)
{
    const struct tensor *first = &p->q->tensors[p->parts[0].tensor];

    if (t->dtype == first->dtype)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%s: %s is %s and %s is %s, but both are parts of %s; --dtype gives them one "
                   "type",
                   p->q->source, first->name, dtype_name(first->dtype), t->name,
                   dtype_name(t->dtype), p->name);
}

static tp_status add_weight(struct module_param_list *l, int tensor, struct arena *arena,
                            struct tp_err *err)
{
    const struct tensor *t = &l->q->tensors[tensor];
    struct module_name name = { .name = t->name };
    struct module_param *p = NULL;
    tp_status st = TP_OK;

    if (l->q->module_names)
        TP_TRY(module_name_of(&name, l->q->model, t, arena, err));
    if (name.is_stacked)
        p = find(l, name.name);
    if (!p) {
        TP_TRY(begin_param(l, &name, t, arena, err));
        p = &l->params[l->n - 1];
    }
    l->of[tensor] = (int)(p - l->params);
    p->parts[p->n++] = (struct module_param_part){ tensor, name.expert, name.row };
    st = check_dtype(p, t, err);
done:
    return st;
}

tp_status module_param_list(struct module_param_list *out, const struct export_contents *q,
                            struct arena *arena, struct tp_err *err)
{
    struct module_param_list l = { .q = q };
    tp_status st = TP_OK;

    l.params = arena_array(arena, (size_t)q->n + 1, sizeof *l.params);
    l.of = arena_array(arena, (size_t)q->n + 1, sizeof *l.of);
    if (!l.params || !l.of)
        return no_memory(&l, err);
    for (int i = 0; i < q->n && !st; i++)
        if (strcmp(q->tensors[i].group, GROUP_PARAM) == 0)
            st = add_weight(&l, i, arena, err);
    *out = l;
    return st;
}

const struct module_param *module_param_find(const struct module_param_list *l, const char *name)
{
    const int tensor = layout_find(l->q->layout, GROUP_PARAM, name);
    const struct module_param *p = tensor < 0 ? NULL : &l->params[l->of[tensor]];

    return p && strcmp(p->name, name) == 0 ? p : find(l, name);
}

/* ---- what a parameter is made of ---- */

int module_param_tensor(const struct module_param *p, int part, const char *group)
{
    const int weight = p->parts[part].tensor;

    return strcmp(group, GROUP_PARAM) == 0
               ? weight
               : layout_find(p->q->layout, group, p->q->tensors[weight].name);
}

int module_param_missing(const struct module_param *p, const char *group)
{
    for (int i = 0; i < p->n; i++)
        if (module_param_tensor(p, i, group) < 0)
            return i;
    return -1;
}

enum dtype module_param_dtype(const struct module_param *p, const char *group)
{
    return p->q->tensors[module_param_tensor(p, 0, group)].dtype;
}

/* What a box of stacked experts has of one of their tensors, and at which of the box's elements it
 * begins; it lies there without gaps. False: nothing. */
static bool find_rows(struct box *rows, int64_t *first, const struct module_param_part *part,
                      const struct tensor *of, const struct box *box)
{
    const struct module_name where = { .expert = part->expert, .row = part->row };
    const struct box own = box_whole(of->ndim, of->shape), whole = module_name_box(&where, &own);
    struct box both;

    if (!box_meet(&both, &whole, box))
        return false;
    rows->ndim = of->ndim;
    for (int d = 0; d < of->ndim; d++) {
        rows->lo[d] = both.lo[d + 1] - whole.lo[d + 1];
        rows->len[d] = both.len[d + 1];
    }
    *first = box_offset_in(box, &both);
    return true;
}

tp_status module_param_add(struct torch_target *x, const struct module_param *p, const char *group,
                           int storage, const struct box *box, int64_t at, struct tp_err *err)
{
    const int elem = dtype_bytes(module_param_dtype(p, group));
    tp_status st = TP_OK;

    for (int i = 0; i < p->n && !st; i++) {
        const struct tensor *of = &p->q->tensors[p->parts[i].tensor];
        struct box rows = *box;
        int64_t first = 0;

        if (p->ndim == of->ndim || find_rows(&rows, &first, &p->parts[i], of, box))
            st = torch_target_add(x, storage, module_param_tensor(p, i, group), &rows,
                                  at + first * elem, err);
    }
    return st;
}

tp_status module_param_push(struct torch_target *x, const struct module_param *p, const char *group,
                            const struct box *box, struct tp_err *err)
{
    const int storage =
        torch_save_tensor(&x->save, module_param_dtype(p, group), box->ndim, box->len);

    return module_param_add(x, p, group, storage, box, 0, err);
}
