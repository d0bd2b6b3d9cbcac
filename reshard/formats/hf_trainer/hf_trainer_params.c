/* reshard/formats/hf_trainer/hf_trainer_params.c - see
 * reshard/formats/hf_trainer/hf_trainer_params.h. */
#include "reshard/formats/hf_trainer/hf_trainer_params.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/family.h"
#include "layout/model_tensors.h"
#include "reshard/formats/pieces/compiled_name.h"

/* What is being looked for. */
struct params_search {
    const struct hf_trainer_optimizer *o;
    const struct hf_trainer_program *program;
    const struct model *model;
    const struct tensor *tensors; /* of the model */
    int n_tensors;
    int version; /* of transformers, from config.json; 0: it is not known */
    struct tp_err *why;
};

static tp_status no_memory(const struct hf_trainer_optimizer *o, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its %d parameters", o->path, o->n);
}

/* ---- weight decay ---- */

/* Which parameters have no weight decay, the largest set first. */
enum decay_rule {
    DECAY_NO_NORM,
    DECAY_NO_LAYERNORM,
    DECAY_NO_LAYER_NORM, /* of transformers' examples for Accelerate */
    DECAY_NO_BIAS,
    DECAY_ALL,
    DECAY_RULES
};

/* Whether a tensor has weight decay. */
static bool decays(enum decay_rule rule, const struct model *m, const struct tensor *t)
{
    const bool bias = tensor_role_is_bias(t->role), norm = tensor_role_is_norm(t->role);

    if (rule == DECAY_ALL || rule == DECAY_NO_BIAS)
        return rule == DECAY_ALL || !bias;
    if (rule == DECAY_NO_LAYER_NORM)
        return !bias && !strstr(t->name, "layer_norm.weight");
    if (rule == DECAY_NO_LAYERNORM && norm && family_of(m)->norm != FAMILY_LAYER_NORM)
        return !strstr(t->name, "layernorm");
    return !bias && !norm;
}

/* Bring parameters into the order of the groups: those with weight decay first, or last. Returns
 * the size of the first group. */
static int group_params(struct parameter_order_item *out, const struct parameter_order_item *params,
                        int n, enum decay_rule rule, bool last, const struct model *m)
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

/* ---- shapes ---- */

/* Whether the moments of state i may be those of a parameter. */
static bool fits(const struct hf_trainer_state *t, const struct parameter_order_item *p)
{
    int64_t shape[BOX_NDIM_MAX];
    const int ndim = parameter_order_shape(shape, p);

    return t->ndim < 0 ||
           (t->ndim == ndim && memcmp(t->shape, shape, sizeof *shape * (size_t)ndim) == 0);
}

/* Refuse a state whose shape is another one, or that is missing. */
static void refuse_state(const struct params_search *s, int i, const struct parameter_order_item *p)
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

/* The first state that has not the shape of its parameter, or is missing; o->n: none. */
static int first_misfit(const struct hf_trainer_optimizer *o,
                        const struct parameter_order_item *params, bool missing)
{
    int i = 0;

    while (i < o->n && fits(&o->states[i], &params[i]) && !(missing && o->states[i].ndim < 0))
        i++;
    return i;
}

/* ---- names ---- */

/* Whether a parameter has this name in a live model of some version. */
static bool has_name(const struct parameter_order_item *p, const char *name)
{
    return strcmp(p->module.name, name) == 0 ||
           (!p->module.is_stacked && strcmp(p->tensor->name, name) == 0);
}

/* The parameter of this name, looked for from `at` on, where it usually is; n: there is none. */
static int find_name(const struct parameter_order_item *params, int n, int at, const char *name)
{
    for (int i = 0; i < n; i++)
        if (has_name(&params[(at + i) % n], name))
            return (at + i) % n;
    return n;
}

/* ---- by order ---- */

/* 445 of config.json's "4.45.2"; 0: it has none. */
static int version_of(const struct model *m)
{
    json_t *root = m->config ? json_loads(m->config, 0, NULL) : NULL;
    const char *text = json_string_value(json_object_get(root, "transformers_version"));
    char *end = NULL;
    const long major = text ? strtol(text, &end, 10) : 0;
    const long minor = end && *end == '.' ? strtol(end + 1, NULL, 10) : -1;
    const bool known = major > 0 && major < 1000 && minor >= 0 && minor < 100;

    json_decref(root);
    return known ? (int)(100 * major + minor) : 0;
}

static int first_group_size(const struct hf_trainer_optimizer *o)
{
    int n = 0;

    while (n < o->n && o->states[n].group == 0)
        n++;
    return n;
}

/* The name here of entry i of the model's state_dict(); NULL: it is no tensor of the model. */
static tp_status weight_name(const char **out, const struct hf_trainer_optimizer *o, int64_t i,
                             struct tp_err *err)
{
    const char *key = pickle_text(pickle_key(o->weights, i)), *name;
    const size_t n = strlen(o->prefix);

    *out = NULL;
    if (!key || !torch_tensor_is(pickle_entry(o->weights, i)))
        return TP_OK;
    name = compiled_name_plain(o->arena, key);
    if (!name)
        return no_memory(o, err);
    if (strncmp(name, o->prefix, n) == 0)
        *out = name + n;
    return TP_OK;
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
        return no_memory(o, err);
    for (int64_t i = 0; i < pickle_entries(o->weights); i++) {
        const char *name;
        tp_status st = weight_name(&name, o, i, err);

        if (st)
            return st;
        at = name ? find_name(params, *n, at % *n, name) : *n;
        if (at < *n && !taken[at]) {
            taken[at] = true;
            found[n_found++] = params[at];
        }
    }
    memcpy(params, found, sizeof *params * (size_t)n_found);
    *n = n_found;
    return TP_OK;
}

/* Whether all that are not in the first group are in one. */
static bool has_two_groups(const struct hf_trainer_optimizer *o)
{
    const int first = first_group_size(o);

    return first == o->n || o->states[first].group == o->states[o->n - 1].group;
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
static tp_status try_order(struct params_order *out, const struct params_search *s,
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
        return no_memory(s->o, err);
    for (int i = 0; i < 2 * DECAY_RULES && out->fit != FIT_NOT && out->fit != FIT_SHAPES; i++) {
        const enum decay_rule rule = (enum decay_rule)(i % DECAY_RULES);
        const bool last = i >= DECAY_RULES;

        if (!s->program->own_groups && (last || rule == DECAY_NO_LAYER_NORM))
            continue;
        if (group_params(out->params, params, out->n, rule, last, s->model) ==
                first_group_size(s->o) &&
            has_two_groups(s->o))
            out->fit = first_misfit(s->o, out->params, false) < s->o->n ? FIT_GROUPS : FIT_SHAPES;
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
static void refuse_order(const struct params_search *s, const struct params_order *best)
{
    const int first = first_group_size(s->o);
    const int misfit = best->fit == FIT_GROUPS ? first_misfit(s->o, best->params, false) : 0;
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
                has_two_groups(s->o) ? "" : " (in several groups)", wants);
    else
        refuse_state(s, misfit, &best->params[misfit]);
}

/* Which of two orders fits better; of two that fit alike, that of the version. *alike: they fit
 * alike, differ, and no version decides. */
static const struct params_order *better(bool *alike, const struct params_search *s,
                                         const struct params_order *a, const struct params_order *b)
{
    if (a->fit != b->fit) {
        if (b->fit > a->fit)
            *alike = false;
        return b->fit > a->fit ? b : a;
    }
    if (!s->version && a->fit == FIT_SHAPES && !same_order(a, b))
        *alike = true;
    return parameter_order_is_of(b->order, s->version) ? b : a;
}

static tp_status find_by_order(const struct parameter_order_item **out,
                               const struct params_search *s, struct tp_err *err)
{
    const struct params_order *best = NULL;
    const struct parameter_order *order;
    bool alike = false;

    for (int i = 0; (order = parameter_order_of(s->model->family, i)); i++) {
        struct params_order *x = arena_alloc(s->o->arena, sizeof *x);
        tp_status st;

        if (!x)
            return no_memory(s->o, err);
        x->order = order;
        st = try_order(x, s, err);
        if (st)
            return st;
        best = best ? better(&alike, s, best, x) : x;
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

/* ---- by names ---- */

/* Find the parameters in one order of the model, which differ in what they stack. *missing is the
 * first state whose name it does not have; o->n: it has all. */
static tp_status take_names(const struct parameter_order_item **out, int *missing,
                            const struct params_search *s, const struct parameter_order *order,
                            struct tp_err *err)
{
    struct parameter_order_item *params, *found;
    bool *taken;
    int n, at = 0;
    tp_status st = parameter_order_list(&params, &n, order, s->model, s->tensors, s->n_tensors,
                                        s->o->arena, err);

    if (st)
        return st;
    found = arena_array(s->o->arena, (size_t)s->o->n, sizeof *found);
    taken = arena_array(s->o->arena, (size_t)n, sizeof *taken);
    if (!found || !taken)
        return no_memory(s->o, err);
    for (*missing = 0; *missing < s->o->n; ++*missing) {
        const char *name = compiled_name_plain(s->o->arena, s->o->states[*missing].name);

        if (!name)
            return no_memory(s->o, err);
        at = find_name(params, n, at, name);
        if (at == n || taken[at])
            break;
        taken[at] = true;
        found[*missing] = params[at];
    }
    *out = found;
    return TP_OK;
}

static tp_status find_by_name(const struct parameter_order_item **out,
                              const struct params_search *s, struct tp_err *err)
{
    const struct parameter_order *order;
    int missing = 0;

    for (int i = 0; (order = parameter_order_of(s->model->family, i)); i++) {
        tp_status st = take_names(out, &missing, s, order, err);

        if (st || missing == s->o->n)
            return st;
    }
    tp_fail(s->why, TP_E_USAGE,
            "%s: has a parameter %.200s (number %d), which the model of config.json does not have, "
            "or twice",
            s->o->path, s->o->states[missing].name, missing);
    return TP_OK;
}

/* Without a model, names are those of the weights. */
static tp_status take_all_names(const struct parameter_order_item **out,
                                const struct hf_trainer_optimizer *o, struct tp_err *err)
{
    struct parameter_order_item *found = arena_array(o->arena, (size_t)o->n, sizeof *found);
    struct tensor *tensors = arena_array(o->arena, (size_t)o->n, sizeof *tensors);

    if (!found || !tensors)
        return no_memory(o, err);
    for (int i = 0; i < o->n; i++) {
        const struct hf_trainer_state *state = &o->states[i];

        tensors[i] = (struct tensor){ .name = compiled_name_plain(o->arena, state->name) };
        if (!tensors[i].name)
            return no_memory(o, err);
        tensors[i].ndim = state->ndim < 0 ? 0 : state->ndim;
        memcpy(tensors[i].shape, state->shape, sizeof state->shape);
        found[i].tensor = &tensors[i];
        found[i].module.name = tensors[i].name;
    }
    *out = found;
    return TP_OK;
}

/* ---- by the model's state_dict() alone ---- */

/* The tensors of the model's state_dict(). One that begins where the first of its storage does is
 * that again: a tied head. */
static tp_status list_weights(struct tensor *tensors, int *n, const struct hf_trainer_optimizer *o,
                              struct tp_err *err)
{
    const struct zip *zip = &o->file->torch.zip;
    int64_t *first = arena_array(o->arena, (size_t)zip->n, sizeof *first); /* byte; 0: none yet */
    tp_status st = first ? TP_OK : no_memory(o, err);

    *n = 0;
    for (int64_t i = 0; i < pickle_entries(o->weights) && !st; i++) {
        struct torch_tensor t;
        const char *name;
        int64_t *begin;

        TP_TRY(weight_name(&name, o, i, err));
        if (!name)
            continue;
        TP_TRY(torch_tensor_read(&t, &o->file->torch, pickle_entry(o->weights, i), name, err));
        begin = &first[t.storage - zip->members];
        if (*begin == t.begin)
            continue;
        *begin = *begin ? *begin : t.begin;
        tensors[*n] = (struct tensor){ .name = name, .ndim = t.ndim };
        memcpy(tensors[(*n)++].shape, t.shape, sizeof t.shape);
    }
done:
    return st;
}

/* A program whose only group has all tensors of its model. *out stays NULL if this is another. */
static tp_status take_weights(const struct parameter_order_item **out,
                              const struct hf_trainer_optimizer *o, struct tp_err *err)
{
    const size_t entries = (size_t)pickle_entries(o->weights) + 1;
    struct parameter_order_item *found = arena_array(o->arena, entries, sizeof *found);
    struct tensor *tensors = arena_array(o->arena, entries, sizeof *tensors);
    int n = 0;
    tp_status st = found && tensors ? list_weights(tensors, &n, o, err) : no_memory(o, err);

    if (st || n != o->n || first_group_size(o) != n)
        return st;
    for (int i = 0; i < n; i++)
        found[i] =
            (struct parameter_order_item){ .tensor = &tensors[i], .module.name = tensors[i].name };
    if (first_misfit(o, found, true) == n)
        *out = found;
    return TP_OK;
}

/* ---- both ---- */

static void refuse_unknown(const struct hf_trainer_optimizer *o, const struct model *m,
                           struct tp_err *why)
{
    if (!m)
        tp_fail(why, TP_E_USAGE,
                "%s: knows parameters by numbers, whose order follows from the model, and there is "
                "no config.json of a known family (docs/MODELS.md); --config names one",
                o->path);
    else
        tp_fail(why, TP_E_USAGE,
                "%s: knows parameters by numbers, whose order is not known for this "
                "architecture",
                o->path);
}

tp_status hf_trainer_params_find(const struct parameter_order_item **out,
                                 const struct hf_trainer_optimizer *o,
                                 const struct hf_trainer_program *program, const struct model *m,
                                 struct tp_err *why, struct tp_err *err)
{
    struct params_search s = { .o = o, .program = program, .model = m, .why = why };
    struct tensor *tensors;
    int misfit;
    tp_status st;

    why->status = TP_OK;
    if (!m || m->family == MODEL_OF_RULES) {
        if (o->named)
            return take_all_names(out, o, err);
        st = o->weights ? take_weights(out, o, err) : TP_OK;
        if (!st && !*out)
            refuse_unknown(o, m, why);
        return st;
    }
    s.version = program->other_version ? 0 : version_of(m);
    TP_TRY(model_params(&tensors, &s.n_tensors, m, DTYPE_F32, o->arena, err));
    s.tensors = tensors;
    TP_TRY(o->named ? find_by_name(out, &s, err) : find_by_order(out, &s, err));
    if (why->status)
        goto done;
    misfit = first_misfit(o, *out, true);
    if (misfit < o->n)
        refuse_state(&s, misfit, &(*out)[misfit]);
done:
    return st;
}

tp_status hf_trainer_params_list(struct parameter_order_item **out, int *n_out, int *n_decayed,
                                 const struct model *m, enum hf_trainer_groups groups,
                                 const struct tensor *tensors, int n, struct arena *arena,
                                 struct tp_err *err)
{
    static const enum decay_rule rules[] = { [HF_TRAINER_GROUPS_NORMS] = DECAY_NO_NORM,
                                             [HF_TRAINER_GROUPS_EXAMPLES] = DECAY_NO_LAYER_NORM,
                                             [HF_TRAINER_GROUPS_ONE] = DECAY_ALL };
    struct parameter_order_item *params;
    tp_status st = parameter_order_list(&params, n_out, parameter_order_of(m->family, 0), m,
                                        tensors, n, arena, err);

    if (st)
        return st;
    *out = arena_array(arena, (size_t)n + 1, sizeof **out);
    if (!*out)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", n);
    *n_decayed = group_params(*out, params, *n_out, rules[groups], false, m);
    return TP_OK;
}
