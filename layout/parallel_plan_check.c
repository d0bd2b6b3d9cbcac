/* layout/parallel_plan_check.c - whether a parallel plan fits a model; see layout/parallel_plan.h.
 */
#include <string.h>

#include "layout/family.h"
#include "layout/parallel_plan.h"

/* Layers whose outputs are inputs of other layers, in every family that has both. */
static const struct plan_edge {
    enum tensor_role from, to;
} edges[] = {
    { ROLE_ATTENTION_NORM, ROLE_Q },
    { ROLE_ATTENTION_NORM, ROLE_K },
    { ROLE_ATTENTION_NORM, ROLE_V },
    { ROLE_ATTENTION_NORM, ROLE_QKV },
    { ROLE_Q, ROLE_OUT },
    { ROLE_K, ROLE_OUT },
    { ROLE_V, ROLE_OUT },
    { ROLE_QKV, ROLE_OUT },
    { ROLE_MLP_NORM, ROLE_GATE },
    { ROLE_MLP_NORM, ROLE_UP },
    { ROLE_MLP_NORM, ROLE_GATE_UP },
    { ROLE_MLP_NORM, ROLE_ROUTER },
    { ROLE_MLP_NORM, ROLE_EXPERT_GATE },
    { ROLE_MLP_NORM, ROLE_EXPERT_UP },
    { ROLE_GATE, ROLE_DOWN },
    { ROLE_UP, ROLE_DOWN },
    { ROLE_GATE_UP, ROLE_DOWN },
    { ROLE_EXPERT_GATE, ROLE_EXPERT_DOWN },
    { ROLE_EXPERT_UP, ROLE_EXPERT_DOWN },
};

/* Weights and their biases. */
static const struct plan_edge biases[] = {
    { ROLE_ATTENTION_NORM, ROLE_ATTENTION_NORM_BIAS },
    { ROLE_Q, ROLE_Q_BIAS },
    { ROLE_K, ROLE_K_BIAS },
    { ROLE_V, ROLE_V_BIAS },
    { ROLE_QKV, ROLE_QKV_BIAS },
    { ROLE_OUT, ROLE_OUT_BIAS },
    { ROLE_MLP_NORM, ROLE_MLP_NORM_BIAS },
    { ROLE_GATE, ROLE_GATE_BIAS },
    { ROLE_UP, ROLE_UP_BIAS },
    { ROLE_DOWN, ROLE_DOWN_BIAS },
    { ROLE_FINAL_NORM, ROLE_FINAL_NORM_BIAS },
};

struct plan_check {
    const struct parallel_plan *plan;
    const char *path;
    struct tp_err *err;
};

static tp_status check_roles(const struct plan_check *c, const struct model *m)
{
    const struct family *family = family_of(m);

    for (int i = 0; i < c->plan->n; i++) {
        const struct parallel_plan_entry *e = &c->plan->entries[i];

        if (!family_tensor_find(family, e->role))
            return tp_fail(c->err, TP_E_USAGE, "%s: %s (%s) is not part of a %s", c->path,
                           e->pattern, tensor_role_name(e->role), family->architecture);
        if (!tensor_role_allows(e->role, e->cut))
            return tp_fail(c->err, TP_E_USAGE, "%s: %s (%s) cannot be cut by %s", c->path,
                           e->pattern, tensor_role_name(e->role), tensor_cut_name(e->cut));
    }
    for (const struct family_tensor *t = family->tensors; t->role != ROLE_NONE; t++)
        if (!parallel_plan_find(c->plan, t->role) && family_tensor_is_in(t, m))
            return tp_fail(c->err, TP_E_USAGE, "%s: has no line for %s, which a %s needs", c->path,
                           tensor_role_name(t->role), family->architecture);
    return TP_OK;
}

/* Whether the pattern can mean the same tensor as `name`, which may be a pattern itself. */
static bool matches(const char *pattern, const char *name)
{
    const char *star = strchr(pattern, '*');
    size_t before, after, n = strlen(name), digits;

    if (!star || strchr(name, '*'))
        return strcmp(pattern, name) == 0;
    before = (size_t)(star - pattern);
    after = strlen(star + 1);
    if (n <= before + after || strncmp(pattern, name, before) != 0 ||
        strcmp(star + 1, name + n - after) != 0)
        return false;
    digits = strspn(name + before, "0123456789");
    return digits == n - before - after;
}

static tp_status check_names(const struct plan_check *c)
{
    for (int i = 0; i < c->plan->n; i++)
        for (int k = 0; k < c->plan->n; k++) {
            const struct parallel_plan_entry *a = &c->plan->entries[i], *b = &c->plan->entries[k];

            if (i != k && matches(a->pattern, b->pattern))
                return tp_fail(c->err, TP_E_USAGE, "%s: %s and %s have the same name: %s", c->path,
                               tensor_role_name(a->role), tensor_role_name(b->role), b->pattern);
        }
    return TP_OK;
}

static tp_status fail_edge(const struct plan_check *c, const struct parallel_plan_entry *from,
                           const struct parallel_plan_entry *to)
{
    if (from->cut == CUT_COLUMN)
        return tp_fail(c->err, TP_E_USAGE,
                       "%s: %s (%s) is column-parallel, so each rank has only its own part of what "
                       "it computes, but %s (%s), which reads it, is %s and needs all of it: make "
                       "%s row, or %s replicated",
                       c->path, from->pattern, tensor_role_name(from->role), to->pattern,
                       tensor_role_name(to->role), tensor_cut_name(to->cut),
                       tensor_role_name(to->role), tensor_role_name(from->role));
    return tp_fail(
        c->err, TP_E_USAGE,
        "%s: %s (%s) is row-parallel, so each rank needs only its own part of the "
        "input, but %s (%s), which computes that, is %s and gives every rank all of it: "
        "make %s %s",
        c->path, to->pattern, tensor_role_name(to->role), from->pattern,
        tensor_role_name(from->role), tensor_cut_name(from->cut), tensor_role_name(to->role),
        tensor_role_allows(from->role, CUT_COLUMN) ? "replicated, or what it reads column"
                                                   : "column or replicated");
}

static tp_status check_edges(const struct plan_check *c)
{
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        const struct parallel_plan_entry *from = parallel_plan_find(c->plan, edges[i].from);
        const struct parallel_plan_entry *to = parallel_plan_find(c->plan, edges[i].to);

        if (from && to && (from->cut == CUT_COLUMN) != (to->cut == CUT_ROW))
            return fail_edge(c, from, to);
    }
    for (size_t i = 0; i < sizeof biases / sizeof biases[0]; i++) {
        const struct parallel_plan_entry *weight = parallel_plan_find(c->plan, biases[i].from);
        const struct parallel_plan_entry *bias = parallel_plan_find(c->plan, biases[i].to);

        if (weight && bias && (weight->cut == CUT_COLUMN) != (bias->cut == CUT_COLUMN))
            return tp_fail(c->err, TP_E_USAGE,
                           "%s: %s is %s and its bias %s is %s: the bias must be %s", c->path,
                           weight->pattern, tensor_cut_name(weight->cut), bias->pattern,
                           tensor_cut_name(bias->cut),
                           weight->cut == CUT_COLUMN ? "column too" : "sequence or replicated");
    }
    return TP_OK;
}

tp_status parallel_plan_check(const struct parallel_plan *p, const struct model *m,
                              const char *path, struct tp_err *err)
{
    const struct plan_check c = { p, path, err };
    tp_status st;

    if ((st = check_roles(&c, m)) || (st = check_names(&c)))
        return st;
    return check_edges(&c);
}
