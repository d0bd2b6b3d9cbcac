/* reshard/formats/hf_trainer/numbered_adamw.c - see
 * reshard/formats/hf_trainer/numbered_adamw.h. */
#include "reshard/formats/hf_trainer/numbered_adamw.h"

#include <string.h>

#include "reshard/formats/hf_trainer/hf_trainer_optimizer.h"
#include "reshard/formats/hf_trainer/hf_trainer_params.h"
#include "reshard/formats/pieces/compiled_name.h"
#include "reshard/formats/pieces/module_piece.h"

/* Whether a piece has the shape of a parameter. */
static bool has_shape(const struct piece *p, const struct parameter_order_item *param)
{
    int64_t shape[BOX_NDIM_MAX];
    const int ndim = parameter_order_shape(shape, param);

    return p->ndim == ndim && p->dtype != DTYPE_COUNT &&
           memcmp(p->shape, shape, sizeof *shape * (size_t)ndim) == 0;
}

/* Whether a key of a state may be the name of a group of tensors. */
static bool is_group(const char *key)
{
    return *key && key[strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789_")] == 0 &&
           strcmp(key, GROUP_PARAM) != 0 && strcmp(key, GROUP_MASTER) != 0;
}

/* Note an entry of a state that stays behind. */
static tp_status leave_entry(struct hf_trainer_optimizer *o, int number, const char *key,
                             struct tp_err *err)
{
    const char *name = arena_printf(&o->file->arena, "%s.state.%d.%s", o->title, number, key);

    return name ? piece_source_leave(o->file->source, name, err)
                : tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", o->path);
}

/* Add an entry of a state: the moments, another tensor of their shape (amsgrad's), or the step. */
static tp_status add_entry(struct hf_trainer_optimizer *o, const struct model *m, int number,
                           int64_t entry, const struct parameter_order_item *param,
                           struct tp_err *err)
{
    struct piece_source *s = o->file->source;
    const struct pickle_value *state = o->states[number].value, *v = pickle_entry(state, entry);
    const char *key = pickle_text(pickle_key(state, entry)), *group;
    const char *name = param->module.is_stacked ? param->module.name : param->tensor->name;
    struct piece p;
    int64_t step;
    tp_status st = TP_OK;

    if (key && strcmp(key, "step") == 0 && torch_pieces_is_number(v)) {
        st = torch_pieces_number(&step, o->file, v, name, err);
        return st ? st : piece_source_set_step(s, step, name, err);
    }
    if (!key || !is_group(key) || !torch_tensor_is(v))
        return leave_entry(o, number, key ? key : "?", err);
    group = strcmp(key, GROUP_EXP_AVG) == 0      ? GROUP_EXP_AVG
            : strcmp(key, GROUP_EXP_AVG_SQ) == 0 ? GROUP_EXP_AVG_SQ
                                                 : arena_strdup(o->arena, key);
    if (!group)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", o->path);
    st = torch_pieces_tensor(&p, o->file, v, group, name, err);
    if (st)
        return st;
    return has_shape(&p, param) ? module_piece_add(s, m, &p, err)
                                : leave_entry(o, number, key, err);
}

/* Whether a group has the options of the one with weight decay; of weight decay also none, as
 * Trainer gives it to the second. */
static bool has_options(const struct pickle_value *group, const struct export_adamw *first,
                        bool no_decay)
{
    struct export_adamw own = *first;

    return torch_pieces_adamw(&own, group) && own.lr == first->lr && own.beta1 == first->beta1 &&
           own.beta2 == first->beta2 && own.eps == first->eps &&
           (own.weight_decay == first->weight_decay || (no_decay && own.weight_decay == 0));
}

/* Whether a key of a group is there, and a bool of this value. */
static bool is_bool(const struct pickle_value *group, const char *key, bool value)
{
    const struct pickle_value *v = pickle_get(group, key);

    return pickle_is(v, PICKLE_BOOL) && (v->number != 0) == value;
}

/* Whether a group's optimizer needs state that no target has: AdamW's maxima with amsgrad, or
 * NAdam's product. */
static bool needs_more_state(const struct pickle_value *group)
{
    return is_bool(group, "amsgrad", true) || pickle_get(group, "momentum_decay");
}

/* Whether a group's options make it that of AdamW alone: without amsgrad, and with weight decay as
 * AdamW has it, which Adam has not. NAdam and RAdam have no amsgrad. */
static bool is_plain(const struct pickle_value *group, const struct export_adamw *options)
{
    const bool coupled = is_bool(group, "decoupled_weight_decay", false);

    return !needs_more_state(group) && !is_bool(group, "maximize", true) &&
           !(pickle_get(group, "decoupled_weight_decay") && !pickle_get(group, "amsgrad")) &&
           !(coupled && options->weight_decay != 0);
}

/* The number of the group with the largest weight decay; of several the first. */
static int64_t decayed_group(const struct hf_trainer_optimizer *o)
{
    double most = -1;
    int64_t found = 0;

    for (int64_t g = 0; g < pickle_count(o->groups); g++) {
        const struct pickle_value *group = pickle_item(o->groups, g);
        double decay;

        if (pickle_count(pickle_get(group, "params")) > 0 &&
            pickle_real(&decay, pickle_get(group, "weight_decay")) && decay > most) {
            most = decay;
            found = g;
        }
    }
    return found;
}

/* Take AdamW's options of the group with weight decay. They are all that the groups say, or what
 * another checkpoint of Trainer says too, or else stay behind in part. */
static tp_status add_options(struct hf_trainer_optimizer *o,
                             const struct hf_trainer_program *program,
                             const struct parameter_order_item *params, struct tp_err *err)
{
    struct piece_source *s = o->file->source;
    struct export_adamw first = EXPORT_ADAMW_DEFAULT;
    const char *name = arena_printf(&o->file->arena, "%s.param_groups", o->title);
    const int64_t main = decayed_group(o);
    const bool known = torch_pieces_adamw(&first, pickle_item(o->groups, main));
    struct piece_extra groups = { NULL, 0 };
    bool equal = known && is_plain(pickle_item(o->groups, main), &first),
         as_trainer = equal && main == 0, more_state = false;
    tp_status st;

    if (!name)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", o->path);
    for (int64_t g = 0; g < pickle_count(o->groups); g++) {
        const struct pickle_value *group = pickle_item(o->groups, g);

        more_state |= needs_more_state(group);
        if (g == main || pickle_count(pickle_get(group, "params")) == 0)
            continue;
        equal &= has_options(group, &first, false);
        as_trainer &= g == 1 && has_options(group, &first, true);
    }
    if (known)
        piece_source_set_adamw(s, &first);
    st = program->own_groups && !more_state ? hf_trainer_optimizer_groups(&groups, o, params, err)
                                            : TP_OK;
    if (st)
        return st;
    st = (as_trainer && !program->own_groups) || groups.n
             ? piece_source_leave_extra(s, name, groups.bytes, groups.n, err)
             : piece_source_leave(s, name, err);
    if (!st && equal)
        piece_source_left_in_adamw(s);
    return st;
}

/* Apex's AdamW has the step of a group. */
static tp_status add_group_steps(struct hf_trainer_optimizer *o, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int64_t g = 0; g < pickle_count(o->groups) && !st; g++) {
        const struct pickle_value *step = pickle_get(pickle_item(o->groups, g), "step");
        int64_t n;

        if (!torch_pieces_is_number(step))
            continue;
        st = torch_pieces_number(&n, o->file, step, "step", err);
        if (!st)
            st = piece_source_set_step(o->file->source, n, "param_groups", err);
    }
    return st;
}

static tp_status add_states(struct hf_trainer_optimizer *o, const struct numbered_adamw *q,
                            const struct model *m, const struct parameter_order_item *params,
                            struct tp_err *err)
{
    tp_status st = add_options(o, &q->program, params, err);

    if (!st)
        st = add_group_steps(o, err);
    for (int i = 0; i < o->n && !st; i++)
        for (int64_t k = 0; k < pickle_entries(o->states[i].value) && !st; k++)
            st = add_entry(o, m, i, k, &params[i], err);
    return st;
}

/* Leave out what names of parameters have in front of those of tensors here. */
static tp_status strip_names(struct hf_trainer_optimizer *o, const char *prefix, struct tp_err *err)
{
    const size_t n = prefix ? strlen(prefix) : 0;

    for (int i = 0; i < o->n && n > 0 && o->named; i++) {
        const char *name = compiled_name_plain(o->arena, o->states[i].name);

        if (!name)
            return tp_fail(err, TP_E_NOMEM, "%s: no memory for its %d parameters", o->path, o->n);
        o->states[i].name = strncmp(name, prefix, n) == 0 ? name + n : name;
    }
    return TP_OK;
}

tp_status numbered_adamw_read(struct torch_pieces *x, const struct numbered_adamw *q,
                              const struct model *m, struct tp_err *err)
{
    const struct parameter_order_item *params = NULL;
    struct hf_trainer_optimizer o = {
        .file = x, .title = q->title, .weights = q->weights, .prefix = q->prefix
    };
    struct tp_err why = { 0 };
    tp_status st = hf_trainer_optimizer_read(&o, q->root, &why, err);

    if (!st && !why.status)
        st = strip_names(&o, q->names_prefix, err);
    if (!st && !why.status)
        st = hf_trainer_params_find(&params, &o, &q->program, m, &why, err);
    if (st)
        return st;
    if (!why.status)
        return add_states(&o, q, m, params, err);
    piece_source_refuse_state(x->source, &why);
    return piece_source_leave(x->source, q->title, err);
}
