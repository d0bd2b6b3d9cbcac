/* reshard/formats/verl/verl_form.c - see reshard/formats/verl/verl_form.h. */
#include "reshard/formats/verl/verl_form.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "torch/pickle_copy.h"

#define DISTRIBUTED "torch.distributed."

enum { GROUP_NAME_BYTES = 128 };

static struct pickle_writer *out(const struct verl_form *f)
{
    return &f->x->save.pickle;
}

static bool is_distributed(const struct pickle_value *v)
{
    return pickle_is(v, PICKLE_GLOBAL) &&
           strncmp(v->global.module, DISTRIBUTED, sizeof DISTRIBUTED - 1) == 0;
}

/* Objects that a DTensor is made of. */
static bool is_known_class(const struct pickle_value *v)
{
    static const char *const names[] = { "DTensorSpec", "TensorMeta",      "Shard",
                                         "Replicate",   "DeviceMesh",      "_MeshLayout",
                                         "_FlatLayout", "ShardOrderEntry", NULL };

    return is_distributed(v) && text_is_one_of(v->global.name, names);
}

static bool is_known_call(const struct pickle_value *v)
{
    return pickle_is_global(v, "torch", "Size") || pickle_is_global(v, "torch", "device") ||
           pickle_is_global(v, "torch.serialization", "_get_layout");
}

static void push_global(const struct verl_form *f, const struct pickle_value *v)
{
    pickle_write_global(out(f), v->global.module, v->global.name);
}

/* A tuple of the numbers 0 .. n - 1. */
static void push_range(const struct verl_form *f, int64_t n)
{
    pickle_write_op(out(f), PICKLE_OP_MARK);
    for (int64_t i = 0; i < n; i++)
        pickle_write_int(out(f), i);
    pickle_write_op(out(f), PICKLE_OP_TUPLE);
}

static int64_t ranks_of(const struct verl_form *f)
{
    int64_t n = 1;

    for (int d = 0; d < f->mesh.ndim; d++)
        n *= f->mesh.size[d];
    return n;
}

/* ---- meshes ---- */

/* Ranks between neighbours on an axis. */
static int64_t stride_of(const struct verl_form *f, int axis)
{
    int64_t n = 1;

    for (int d = axis + 1; d < f->mesh.ndim; d++)
        n *= f->mesh.size[d];
    return n;
}

/* Sizes or strides of all axes, a number or a tuple as in the source. */
static bool push_numbers(const struct verl_form *f, const struct pickle_value *like, bool strides)
{
    const bool one = pickle_is(like, PICKLE_INT);

    if (one ? f->mesh.ndim != 1 : pickle_count(like) != f->mesh.ndim)
        return false;
    if (!one)
        pickle_write_op(out(f), PICKLE_OP_MARK);
    for (int d = 0; d < f->mesh.ndim; d++)
        pickle_write_int(out(f), strides ? stride_of(f, d) : f->mesh.size[d]);
    if (!one)
        pickle_write_op(out(f), PICKLE_OP_TUPLE);
    return true;
}

static void push_new(const struct verl_form *f, const struct pickle_value *class)
{
    push_global(f, class);
    pickle_write_op(out(f), PICKLE_OP_EMPTY_TUPLE);
    pickle_write_op(out(f), PICKLE_OP_NEWOBJ);
    pickle_write_dict(out(f));
}

static void push_built(const struct verl_form *f)
{
    pickle_write_op(out(f), PICKLE_OP_SETITEMS);
    pickle_write_op(out(f), PICKLE_OP_BUILD);
}

/* Of torch 2.15: an object for each axis, whose shape is empty where it has one rank. */
static bool push_axes(const struct verl_form *f, const struct pickle_value *axes)
{
    const struct pickle_value *first = pickle_item(axes, 0);

    if (!pickle_is(axes, PICKLE_TUPLE) || pickle_count(axes) != f->mesh.ndim ||
        !pickle_is(first, PICKLE_OBJECT) || !is_known_class(first->object.callable))
        return false;
    pickle_write_op(out(f), PICKLE_OP_MARK);
    for (int d = 0; d < f->mesh.ndim; d++) {
        const int64_t size = f->mesh.size[d], stride = stride_of(f, d);
        const int n = size > 1;

        push_new(f, first->object.callable);
        pickle_write_text(out(f), "shape");
        pickle_write_ints(out(f), &size, n);
        pickle_write_text(out(f), "stride");
        pickle_write_ints(out(f), &stride, n);
        push_built(f);
    }
    pickle_write_op(out(f), PICKLE_OP_TUPLE);
    return true;
}

static bool push_layout(const struct verl_form *f, const struct pickle_value *v)
{
    const struct pickle_value *state = pickle_is(v, PICKLE_OBJECT) ? v->object.state : NULL;
    bool known = pickle_is(state, PICKLE_DICT) && is_known_class(v->object.callable);

    if (!known)
        return false;
    push_new(f, v->object.callable);
    for (int64_t i = 0; i < pickle_entries(state) && known; i++) {
        const char *key = pickle_text(pickle_key(state, i));
        const struct pickle_value *is = pickle_entry(state, i);

        known = key != NULL;
        if (known)
            pickle_write_text(out(f), key);
        if (known && strcmp(key, "axes") == 0)
            known = push_axes(f, is);
        else if (known)
            known = (strcmp(key, "shape") == 0 || strcmp(key, "stride") == 0) &&
                    push_numbers(f, is, strcmp(key, "stride") == 0);
    }
    push_built(f);
    return known;
}

/* The place of the rank, a list or a tuple as in the source. */
static bool push_place(const struct verl_form *f, const struct pickle_value *like)
{
    const bool list = pickle_is(like, PICKLE_LIST);

    if (list)
        pickle_write_op(out(f), PICKLE_OP_EMPTY_LIST);
    pickle_write_op(out(f), PICKLE_OP_MARK);
    for (int d = 0; d < f->mesh.ndim; d++)
        pickle_write_int(out(f), f->rank / stride_of(f, d) % f->mesh.size[d]);
    pickle_write_op(out(f), list ? PICKLE_OP_APPENDS : PICKLE_OP_TUPLE);
    return list || pickle_is(like, PICKLE_TUPLE);
}

/* The names of process groups that a mesh of the source's rank 0 has: a list of them, or up to
 * torch 2.6 of tuples (tag, ranks, name). */
static const char *group_name_of(const struct pickle_value *groups, int axis)
{
    const struct pickle_value *v = pickle_item(groups, axis);

    return pickle_text(pickle_is(v, PICKLE_TUPLE) ? pickle_item(v, 2) : v);
}

/* The name of the rank's group on an axis. That of all ranks keeps its name. Of two axes torch
 * numbers first the groups of the first one, as many as the second has ranks, then those of the
 * second. False: the source has not such numbers. */
static bool make_group_name(char name[GROUP_NAME_BYTES], const struct verl_form *f,
                            const struct pickle_value *groups, int axis)
{
    const char *first = group_name_of(groups, 0), *second = group_name_of(groups, 1);
    const int64_t shards = f->mesh.size[f->mesh.ndim - 1];
    long long from, then;
    char *end, *end2;

    if (!first)
        return false;
    if (f->mesh.ndim == 1) {
        snprintf(name, GROUP_NAME_BYTES, "%s", first);
        return true;
    }
    if (!second)
        return false;
    from = strtoll(first, &end, 10);
    then = strtoll(second, &end2, 10);
    if (end == first || *end || end2 == second || *end2 || from < 0 || then - from != shards)
        return false;
    snprintf(name, GROUP_NAME_BYTES, "%lld",
             axis == 0 ? from + f->rank % shards : then + f->rank / shards);
    return true;
}

/* The rank and its neighbours on an axis. */
static void push_neighbours(const struct verl_form *f, int axis)
{
    const int64_t stride = stride_of(f, axis), n = f->mesh.size[axis],
                  first = f->rank - f->rank / stride % n * stride;

    pickle_write_list(out(f));
    for (int64_t i = 0; i < n; i++)
        pickle_write_int(out(f), first + i * stride);
    pickle_write_op(out(f), PICKLE_OP_APPENDS);
}

static void push_groups(const struct verl_form *f, const struct pickle_value *groups)
{
    char name[GROUP_NAME_BYTES] = "", tag[GROUP_NAME_BYTES + 8];

    pickle_write_list(out(f));
    for (int d = 0; d < f->mesh.ndim; d++) {
        const bool named = make_group_name(name, f, groups, d);

        if (named && pickle_is(pickle_item(groups, d), PICKLE_TUPLE)) {
            snprintf(tag, sizeof tag, "ptd:%s", name);
            pickle_write_op(out(f), PICKLE_OP_MARK);
            pickle_write_text(out(f), tag);
            push_neighbours(f, d);
            pickle_write_text(out(f), name);
            pickle_write_op(out(f), PICKLE_OP_TUPLE);
        } else if (named) {
            pickle_write_text(out(f), name);
        }
    }
    pickle_write_op(out(f), PICKLE_OP_APPENDS);
}

/* Groups without a name that can be known are left out. torch needs them only where ranks talk to
 * each other about a tensor that was loaded, which the optimizer does not. */
static bool is_left_out(const struct verl_form *f, const char *key, const struct pickle_value *is)
{
    char ignored[GROUP_NAME_BYTES];

    return strncmp(key, "_dim_group_", 11) == 0 && !make_group_name(ignored, f, is, 0);
}

static bool push_entry(const struct verl_form *f, const char *key, const struct pickle_value *is)
{
    const int64_t n = ranks_of(f);

    if (strcmp(key, "mesh") == 0)
        torch_save_range(&f->x->save, f->mesh.ndim, f->mesh.size);
    else if (strcmp(key, "_rank_map") == 0)
        torch_save_range(&f->x->save, 1, &n);
    else if (strcmp(key, "_flatten_mesh_list") == 0 || strcmp(key, "_flatten_rank_map") == 0)
        push_range(f, n);
    else if (strcmp(key, "_layout") == 0)
        return push_layout(f, is);
    else if (strcmp(key, "_coordinate_on_dim") == 0)
        return push_place(f, is);
    else if (strncmp(key, "_dim_group_", 11) == 0)
        push_groups(f, is);
    else if (strcmp(key, "_hash") == 0) /* of another process; torch computes it again */
        pickle_write_op(out(f), PICKLE_OP_NONE);
    else if (strcmp(key, "_rank") == 0)
        pickle_write_int(out(f), f->rank);
    else if (pickle_copy_can(is))
        pickle_copy(out(f), is);
    else
        return false;
    return true;
}

static bool push_mesh(struct verl_form *f, const struct pickle_value *v)
{
    const struct pickle_value *state = v->object.state;
    bool known = pickle_is(state, PICKLE_DICT);

    if (f->memo >= 0) {
        pickle_write_again(out(f), f->memo);
        return true;
    }
    if (!known)
        return false;
    push_new(f, v->object.callable);
    for (int64_t i = 0; i < pickle_entries(state) && known; i++) {
        const char *key = pickle_text(pickle_key(state, i));

        known = key != NULL;
        if (!known || is_left_out(f, key, pickle_entry(state, i)))
            continue;
        pickle_write_text(out(f), key);
        known = push_entry(f, key, pickle_entry(state, i));
    }
    push_built(f);
    f->memo = pickle_write_remember(out(f));
    return known;
}

/* ---- what is around them ---- */

static bool copy(struct verl_form *f, const struct pickle_value *v, int axis);

/* Items. Of a dict the hash is None, which torch computes again, and the axis that is cut is
 * written for the source's. */
static bool copy_items(struct verl_form *f, const struct pickle_value *v, int axis)
{
    const bool dict = pickle_is(v, PICKLE_DICT);
    bool known = true;

    pickle_write_op(out(f), PICKLE_OP_MARK);
    for (int64_t i = 0; i < v->list.n && known; i += dict ? 2 : 1) {
        const char *key = dict ? pickle_text(v->list.items[i]) : NULL;

        known = copy(f, v->list.items[i], axis);
        if (known && key && strcmp(key, "_hash") == 0)
            pickle_write_op(out(f), PICKLE_OP_NONE);
        else if (known && key && strcmp(key, "dim") == 0)
            pickle_write_int(out(f), axis);
        else if (known && dict)
            known = copy(f, v->list.items[i + 1], axis);
    }
    return known;
}

/* (tensor's axis, (mesh's axis,)) of a spec since torch 2.11. */
static bool push_order(const struct verl_form *f, int axis)
{
    const int64_t last = f->mesh.ndim - 1;

    pickle_write_op(out(f), PICKLE_OP_MARK);
    pickle_write_int(out(f), axis);
    pickle_write_ints(out(f), &last, 1);
    pickle_write_op(out(f), PICKLE_OP_TUPLE);
    return true;
}

static bool copy_object(struct verl_form *f, const struct pickle_value *v, int axis)
{
    const struct pickle_value *call = v->object.callable;
    const bool class = is_known_class(call);

    if (class && strcmp(call->global.name, "DeviceMesh") == 0)
        return push_mesh(f, v);
    if (!class && !is_known_call(call))
        return false;
    push_global(f, call);
    if (class && strcmp(call->global.name, "ShardOrderEntry") == 0 ? !push_order(f, axis)
                                                                   : !copy(f, v->object.args, axis))
        return false;
    pickle_write_op(out(f), class ? PICKLE_OP_NEWOBJ : PICKLE_OP_REDUCE);
    if (v->object.state) {
        if (!copy(f, v->object.state, axis))
            return false;
        pickle_write_op(out(f), PICKLE_OP_BUILD);
    }
    return true;
}

/* Copy what a spec is made of; values nest at most PICKLE_DEPTH_MAX deep. */
static bool copy(struct verl_form *f, const struct pickle_value *v, int axis)
{
    bool known = true;

    switch (v->kind) {
    case PICKLE_OBJECT:
        return copy_object(f, v, axis);
    case PICKLE_GLOBAL:
        push_global(f, v);
        return strcmp(v->global.module, "torch") == 0 ||
               (is_distributed(v) && strcmp(v->global.name, "DTensor") == 0);
    case PICKLE_TUPLE:
        known = copy_items(f, v, axis);
        pickle_write_op(out(f), PICKLE_OP_TUPLE);
        return known;
    case PICKLE_LIST:
        pickle_write_op(out(f), PICKLE_OP_EMPTY_LIST);
        known = copy_items(f, v, axis);
        pickle_write_op(out(f), PICKLE_OP_APPENDS);
        return known;
    case PICKLE_DICT:
        pickle_write_op(out(f), PICKLE_OP_EMPTY_DICT);
        known = copy_items(f, v, axis);
        pickle_write_op(out(f), PICKLE_OP_SETITEMS);
        return known;
    default:
        pickle_copy(out(f), v);
        return pickle_copy_can(v);
    }
}

/* ---- a DTensor ---- */

/* {"_local_tensor": part, "_spec": spec}. */
static tp_status push_state(bool *known, struct verl_form *f, const struct pickle_value *state,
                            const struct module_param *p, const char *group, int axis,
                            const struct box *box, struct tp_err *err)
{
    tp_status st = TP_OK;

    pickle_write_dict(out(f));
    for (int64_t i = 0; i < pickle_entries(state) && *known && !st; i++) {
        const char *key = pickle_text(pickle_key(state, i));

        *known = key != NULL;
        if (!*known)
            break;
        pickle_write_text(out(f), key);
        if (strcmp(key, "_local_tensor") == 0)
            st = module_param_push(f->x, p, group, box, err);
        else
            *known = copy(f, pickle_entry(state, i), axis);
    }
    pickle_write_op(out(f), PICKLE_OP_SETITEMS);
    return st;
}

tp_status verl_form_push(bool *known, struct verl_form *f, const struct pickle_value *v,
                         const struct module_param *p, const char *group, int axis,
                         const struct box *box, struct tp_err *err)
{
    const struct pickle_value *args = v->object.args, *state = pickle_item(args, 3);
    const bool slots = pickle_is(state, PICKLE_TUPLE);
    tp_status st = TP_OK;

    *known = true;
    pickle_write_global(out(f), "torch._tensor", "_rebuild_from_type_v2");
    pickle_write_op(out(f), PICKLE_OP_MARK);
    pickle_write_global(out(f), "torch._utils", "_rebuild_wrapper_subclass");
    *known = copy(f, pickle_item(args, 1), axis) && copy(f, pickle_item(args, 2), axis);
    if (slots) {
        pickle_write_op(out(f), PICKLE_OP_MARK);
        pickle_write_op(out(f), PICKLE_OP_NONE);
        *known =
            *known && pickle_count(state) == 2 && pickle_is(pickle_item(state, 0), PICKLE_NONE);
    }
    if (*known)
        st = push_state(known, f, slots ? pickle_item(state, 1) : state, p, group, axis, box, err);
    if (slots)
        pickle_write_op(out(f), PICKLE_OP_TUPLE);
    pickle_write_op(out(f), PICKLE_OP_TUPLE);
    pickle_write_op(out(f), PICKLE_OP_REDUCE);
    return st;
}
