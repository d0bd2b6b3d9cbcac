/* reshard/formats/hf_trainer/hf_trainer_order.c - see
 * reshard/formats/hf_trainer/hf_trainer_order.h. */
#include "reshard/formats/hf_trainer/hf_trainer_order.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/formats/hf_trainer/hf_trainer_groups.h"
#include "reshard/formats/hf_trainer/hf_trainer_names.h"

/* The version of transformers in config.json, 445 of "4.45.2"; 0: it is not known. */
static int version_of(const struct hf_trainer_search *s)
{
    const struct model *m = s->program->other_version ? NULL : s->model;
    json_t *root = m && m->config ? json_loads(m->config, 0, NULL) : NULL;
    const char *text = json_string_value(json_object_get(root, "transformers_version"));
    char *end = NULL;
    const long major = text ? strtol(text, &end, 10) : 0;
    const long minor = end && *end == '.' ? strtol(end + 1, NULL, 10) : -1;
    const bool known = major > 0 && major < 1000 && minor >= 0 && minor < 100;

    json_decref(root);
    return known ? (int)(100 * major + minor) : 0;
}

/* Bring parameters into the order of the model's state_dict(), which also has buffers, and shared
 * tensors twice. What it does not have is left out. */
static tp_status order_as_weights(struct parameter_order_item *params, int *n,
                                  const struct hf_trainer_optimizer *o, struct tp_err *err)
{
    struct parameter_order_item *found = arena_array(o->arena, (size_t)*n + 1, sizeof *found);
    bool *taken = arena_array(o->arena, (size_t)*n + 1, sizeof *taken);
    int n_found = 0, at = 0;

    if (!found || !taken)
        return hf_trainer_search_no_memory(o, err);
    for (int64_t i = 0; i < pickle_entries(o->weights); i++) {
        const char *name;
        tp_status st = hf_trainer_names_weight(&name, o, i, err);

        if (st)
            return st;
        at = name ? hf_trainer_names_find(params, *n, at % *n, name) : *n;
        if (at < *n && !taken[at]) {
            taken[at] = true;
            found[n_found++] = params[at];
        }
    }
    memcpy(params, found, sizeof *params * (size_t)n_found);
    *n = n_found;
    return TP_OK;
}

/* An order, and how well it fits. */
struct params_order {
    const struct parameter_order *order;
    struct parameter_order_item *params; /* as the groups have them */
    int n;
    enum params_fit { FIT_NOT, FIT_COUNT, FIT_GROUPS, FIT_SHAPES } fit;
};

/* Try one order: with each rule of weight decay. Those that give the sizes of the groups have the
 * same sets, and the shapes tell which group is the first. */
static tp_status try_order(struct params_order *out, const struct hf_trainer_search *s,
                           struct tp_err *err)
{
    struct parameter_order_item *params;
    tp_status st = parameter_order_list(&params, &out->n, out->order, s->model, s->tensors,
                                        s->n_tensors, s->o->arena, err);

    if (!st && s->o->weights)
        st = order_as_weights(params, &out->n, s->o, err);
    if (st)
        return st;
    out->fit = out->n == s->o->n ? FIT_COUNT : FIT_NOT;
    out->params = arena_array(s->o->arena, (size_t)out->n + 1, sizeof *out->params);
    if (!out->params)
        return hf_trainer_search_no_memory(s->o, err);
    for (int i = 0; i < 2 * HF_TRAINER_DECAY_RULES && out->fit != FIT_NOT && out->fit != FIT_SHAPES;
         i++) {
        const enum hf_trainer_groups_rule rule =
            (enum hf_trainer_groups_rule)(i % HF_TRAINER_DECAY_RULES);
        const bool last = i >= HF_TRAINER_DECAY_RULES;

        if (!s->program->own_groups && (last || rule == HF_TRAINER_DECAY_NO_LAYER_NORM))
            continue;
        if (hf_trainer_groups_make(out->params, params, out->n, rule, last, s->model) ==
                hf_trainer_groups_first(s->o) &&
            hf_trainer_groups_are_two(s->o))
            out->fit = hf_trainer_search_misfit(s->o, out->params, false) < s->o->n ? FIT_GROUPS
                                                                                    : FIT_SHAPES;
    }
    return TP_OK;
}

static bool same_order(const struct params_order *a, const struct params_order *b)
{
    for (int i = 0; i < a->n; i++)
        if (a->params[i].tensor != b->params[i].tensor ||
            a->params[i].module.is_stacked != b->params[i].module.is_stacked)
            return false;
    return true;
}

/* Say why none of the orders fits, of which this one came closest. */
static void refuse_order(const struct hf_trainer_search *s, const struct params_order *best)
{
    const int first = hf_trainer_groups_first(s->o);
    const int misfit =
        best->fit == FIT_GROUPS ? hf_trainer_search_misfit(s->o, best->params, false) : 0;
    const char *wants = s->program->own_groups
                            ? "all parameters, or those with weight decay and those without, which "
                              "are biases and norms"
                            : "those of transformers' Trainer, with weight decay and without";

    if (best->fit == FIT_NOT)
        tp_fail(s->why, TP_E_USAGE,
                "%s: has %d parameters, and the model of config.json has %d; which of them were "
                "trained, it does not say",
                s->o->path, s->o->n, best->n);
    else if (best->fit == FIT_COUNT)
        tp_fail(s->why, TP_E_USAGE,
                "%s: its groups of %d and %d%s parameters are not %s; the program chose others",
                s->o->path, first, s->o->n - first,
                hf_trainer_groups_are_two(s->o) ? "" : " (in several groups)", wants);
    else
        hf_trainer_search_refuse_state(s, misfit, &best->params[misfit]);
}

/* Which of two orders fits better; of two that fit alike, that of the version. *alike: they fit
 * alike, differ, and no version decides. */
static const struct params_order *better(bool *alike, int version, const struct params_order *a,
                                         const struct params_order *b)
{
    if (a->fit != b->fit) {
        if (b->fit > a->fit)
            *alike = false;
        return b->fit > a->fit ? b : a;
    }
    if (!version && a->fit == FIT_SHAPES && !same_order(a, b))
        *alike = true;
    return parameter_order_is_of(b->order, version) ? b : a;
}

tp_status hf_trainer_order_take(const struct parameter_order_item **out,
                                const struct hf_trainer_search *s, struct tp_err *err)
{
    const struct params_order *best = NULL;
    const struct parameter_order *order;
    const int version = version_of(s);
    bool alike = false;

    for (int i = 0; (order = parameter_order_of(s->model->family, i)); i++) {
        struct params_order *x = arena_alloc(s->o->arena, sizeof *x);
        tp_status st;

        if (!x)
            return hf_trainer_search_no_memory(s->o, err);
        x->order = order;
        st = try_order(x, s, err);
        if (st)
            return st;
        best = best ? better(&alike, version, best, x) : x;
    }
    if (!best || best->fit != FIT_SHAPES) {
        if (best)
            refuse_order(s, best);
        return TP_OK;
    }
    if (alike)
        tp_fail(s->why, TP_E_USAGE,
                "%s: versions of transformers have different orders of this model's parameters, of "
                "which several fit; %s",
                s->o->path,
                s->program->other_version
                    ? "put a config.json beside it, with the \"transformers_version\" of the "
                      "program that trained"
                    : "add the \"transformers_version\" that wrote it to config.json");
    *out = best->params;
    return TP_OK;
}
