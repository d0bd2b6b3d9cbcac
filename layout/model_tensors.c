/* layout/model_tensors.c - see layout/model_tensors.h. */
#include "layout/model_tensors.h"

#include <stdio.h>
#include <string.h>

#include "layout/family.h"
#include "layout/parallel_plan.h"

/* Where the tensors of a model are listed. */
struct model_list {
    const struct model *model;
    const struct family *family;
    struct parallel_plan plan;
    enum dtype dtype;
    struct arena *arena;
};

/* What a cut does to a tensor of the family's table. */
static struct placement placement_of(const struct model_list *l, const struct family_tensor *t,
                                     enum tensor_cut cut)
{
    struct placement p = { .dim = -1, .unit = 1, .blocks = 1 };
    const struct model *m = l->model;
    enum tensor_unit unit = tensor_role_unit(t->role);
    int out = family_out_axis(l->family, t);

    if (cut == CUT_VOCABULARY) {
        p.dim = 0;
        p.uneven = true;
    } else if (cut == CUT_COLUMN) {
        p.dim = out;
    } else if (cut == CUT_ROW) {
        p.dim = 1 - out;
    }
    if (p.dim < 0)
        return p;
    p.blocks = tensor_role_blocks(t->role);
    if (unit == UNIT_HEAD || unit == UNIT_KV_HEAD)
        p.unit = m->head_dim;
    p.replicate = unit == UNIT_KV_HEAD;
    if (unit == UNIT_HEAD && p.blocks == 3) {
        if (l->family->qkv_by_head) {
            p.unit *= 3;
            p.blocks = 1;
        } else if (m->kv_heads != m->heads) {
            p.first_block = m->heads * m->head_dim;
        }
    }
    return p;
}

/* The pattern with these numbers for its one or two stars. */
static const char *name_of(const struct model_list *l, const char *pattern, int layer, int expert)
{
    const char *star = strchr(pattern, '*'), *second = star ? strchr(star + 1, '*') : NULL;

    if (!star)
        return arena_strdup(l->arena, pattern);
    if (!second)
        return arena_printf(l->arena, "%.*s%d%s", (int)(star - pattern), pattern, layer, star + 1);
    return arena_printf(l->arena, "%.*s%d%.*s%d%s", (int)(star - pattern), pattern, layer,
                        (int)(second - star - 1), star + 1, expert, second + 1);
}

static bool make_tensor(struct tensor *out, const struct model_list *l,
                        const struct family_tensor *t, int layer, int expert)
{
    const struct parallel_plan_entry *e = parallel_plan_find(&l->plan, t->role);
    struct tensor made = {
        .group = GROUP_PARAM, .dtype = l->dtype, .layer = layer, .role = t->role
    };

    made.name = name_of(l, e->pattern, layer, expert);
    for (made.ndim = 0; made.ndim < 2 && t->shape[made.ndim] != DIM_NONE; made.ndim++)
        made.shape[made.ndim] = family_dim_size(t->shape[made.ndim], l->model);
    made.placement = placement_of(l, t, e->cut);
    if (tensor_role_is_of_expert(t->role)) {
        made.placement.expert = expert;
        made.placement.experts = l->model->experts;
    }
    *out = made;
    return made.name != NULL;
}

/* Whether tensor t of the table belongs to `layer`, which may be LAYER_FIRST or LAYER_LAST. */
static bool is_of(const struct family_tensor *t, int layer, const struct model *m)
{
    if (!family_tensor_is_in(t, m))
        return false;
    if (tensor_role_is_of_layer(t->role))
        return layer >= 0;
    return layer ==
           (t->role == ROLE_EMBEDDING || t->role == ROLE_POSITIONS ? LAYER_FIRST : LAYER_LAST);
}

static int count_of(const struct model *m, int layer)
{
    int n = 0;

    for (const struct family_tensor *t = family_of(m)->tensors; t->role != ROLE_NONE; t++)
        n += is_of(t, layer, m) ? family_tensor_copies(t, m) : 0;
    return n;
}

/* Make the tensors of `layer`. Returns their number, or -1 when memory is out. */
static int fill_layer(struct tensor *tensors, const struct model_list *l, int layer)
{
    int n = 0;

    for (const struct family_tensor *t = l->family->tensors; t->role != ROLE_NONE; t++)
        for (int i = 0; is_of(t, layer, l->model) && i < family_tensor_copies(t, l->model); i++)
            if (!make_tensor(&tensors[n++], l, t, layer, i))
                return -1;
    return n;
}

/* The parameters of the first n_layers layers, and what comes before and after all layers, in a
 * list with room for n_groups times as many. */
static tp_status make_params(struct tensor **tensors, int *n, struct model_list *l, int n_layers,
                             int n_groups, struct tp_err *err)
{
    const struct model *m = l->model;
    int count = count_of(m, LAYER_FIRST) + n_layers * count_of(m, 0) + count_of(m, LAYER_LAST);
    int filled = 0;
    tp_status st;

    l->family = family_of(m);
    l->plan = parallel_plan_of(m);
    st = parallel_plan_check(&l->plan, m, m->plan ? "the parallel plan" : "the built-in plan", err);
    if (st)
        return st;
    *tensors = arena_array(l->arena, (size_t)n_groups * (size_t)count, sizeof **tensors);
    for (int i = -1; i <= n_layers && *tensors; i++) {
        int layer = i < 0 ? LAYER_FIRST : i == n_layers ? LAYER_LAST : i;
        int made = fill_layer(*tensors + filled, l, layer);

        if (made < 0)
            return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", count);
        filled += made;
    }
    *n = count;
    return *tensors ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", count);
}

tp_status model_params(struct tensor **tensors, int *n, const struct model *m, enum dtype dtype,
                       struct arena *arena, struct tp_err *err)
{
    struct model_list l = { .model = m, .dtype = dtype, .arena = arena };

    return make_params(tensors, n, &l, m->layers, 1, err);
}

tp_status model_state(struct tensor **tensors, int *n, const struct model *m, enum dtype dtype,
                      struct arena *arena, struct tp_err *err)
{
    static const char *const groups[] = { GROUP_MASTER, GROUP_EXP_AVG, GROUP_EXP_AVG_SQ };
    struct model_list l = { .model = m, .dtype = dtype, .arena = arena };
    struct tensor *t;
    int count, filled;
    tp_status st = make_params(&t, &count, &l, m->layers, 4, err);

    if (st)
        return st;
    filled = count;
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        if (dtype == DTYPE_F32 && strcmp(groups[g], GROUP_MASTER) == 0)
            continue; /* the parameters are their own masters */
        memcpy(t + filled, t, (size_t)count * sizeof *t);
        for (int i = filled; i < filled + count; i++) {
            t[i].group = groups[g];
            t[i].dtype = DTYPE_F32;
        }
        filled += count;
    }
    *tensors = t;
    *n = filled;
    return TP_OK;
}

tp_status model_kinds(struct tensor_kinds *out, const struct model *m, struct arena *arena,
                      struct tp_err *err)
{
    struct model_list l = { .model = m, .dtype = DTYPE_F32, .arena = arena };
    struct tensor *t;
    int n;
    tp_status st = make_params(&t, &n, &l, 1, 1, err);

    return st ? st : tensor_kinds_find(out, t, n, arena, err);
}
