/*
 * reshard/formats/megatron/megatron_optimizer.c - the state of Megatron-LM's optimizers; see
 * reshard/formats/megatron/megatron_rank.h.
 *
 * The ordinary optimizer numbers a rank's parameters: matrices first, which have weight decay, then
 * vectors; within each in the order of modules. With expert parallelism there are two, one without
 * and one with the experts' parameters. The distributed optimizer has flat buffers
 * (reshard/formats/megatron/megatron_flat.h).
 */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/megatron/megatron_flat.h"
#include "storage/object.h"

static const char *path_of(const struct torch_pieces *x)
{
    return file_table_path(piece_source_files(x->source), x->file);
}

/* ---- the ordinary optimizer ---- */

struct ordinary_optimizer {
    struct pickle_numbers state;        /* of each parameter, by its number */
    const struct pickle_value *masters; /* NULL: none */
};

static bool has_shape_of(const struct piece *p, const struct megatron_rank_param *param)
{
    return p->ndim == param->ndim &&
           memcmp(p->shape, param->shape, sizeof *p->shape * (size_t)p->ndim) == 0;
}

/* Add a tensor of the optimizer that has the shape of a parameter. */
static tp_status add_whole(struct megatron_rank *r, struct torch_pieces *x,
                           const struct megatron_rank_param *param, const char *group,
                           const struct pickle_value *v, struct tp_err *err)
{
    struct piece p;
    tp_status st = torch_pieces_tensor(&p, x, v, group, param->name, err);

    if (st)
        return st;
    if (!has_shape_of(&p, param))
        return tp_fail(
            err, TP_E_CORRUPT,
            "%s: %s of the optimizer has another shape than parameter %s; its parameters "
            "may have been numbered in an unknown way",
            path_of(x), group, param->name);
    return megatron_rank_add_tensor(r, param, &p, err);
}

/* Master number `number`, counted through the groups. */
static const struct pickle_value *find_master(const struct pickle_value *groups, int64_t number)
{
    for (int64_t g = 0; g < pickle_count(groups); g++) {
        const struct pickle_value *group = pickle_item(groups, g);

        if (number < pickle_count(group))
            return pickle_item(group, number);
        number -= pickle_count(group);
    }
    return NULL;
}

/* Note or add a tensor of another optimizer, such as SGD's momentum_buffer: a group that stays
 * behind. One that has not the shape of its parameter is only noted. */
static tp_status add_other(struct megatron_rank *r, struct torch_pieces *x,
                           const struct megatron_rank_param *param, const char *key,
                           const struct pickle_value *v, struct tp_err *err)
{
    struct arena *arena = piece_source_arena(r->source);
    const char *group = arena_strdup(arena, key),
               *name = arena_printf(arena, "optimizer.state.%s", key);
    struct piece p;
    tp_status st;

    if (!group || !name)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its optimizer", path_of(x));
    st = torch_pieces_tensor(&p, x, v, group, param->name, err);
    if (st)
        return st;
    if (!has_shape_of(&p, param) || strcmp(key, GROUP_PARAM) == 0 || strcmp(key, GROUP_MASTER) == 0)
        return piece_source_leave(r->source, name, err);
    return megatron_rank_add_tensor(r, param, &p, err);
}

/* The tensors of a parameter's state. */
static tp_status add_tensors(struct megatron_rank *r, struct torch_pieces *x,
                             const struct megatron_rank_param *param,
                             const struct pickle_value *state, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int64_t i = 0; i < pickle_entries(state) && !st; i++) {
        const char *key = pickle_text(pickle_key(state, i));
        const struct pickle_value *v = pickle_entry(state, i);

        if (!key || strcmp(key, "step") == 0 || !torch_tensor_is(v))
            continue;
        if (strcmp(key, GROUP_EXP_AVG) == 0)
            st = add_whole(r, x, param, GROUP_EXP_AVG, v, err);
        else if (strcmp(key, GROUP_EXP_AVG_SQ) == 0)
            st = add_whole(r, x, param, GROUP_EXP_AVG_SQ, v, err);
        else
            st = add_other(r, x, param, key, v, err);
    }
    return st;
}

static tp_status add_state(struct megatron_rank *r, struct torch_pieces *x, int64_t number,
                           const struct megatron_rank_param *param,
                           const struct ordinary_optimizer *optimizer, struct tp_err *err)
{
    const struct pickle_value *masters = optimizer->masters,
                              *state = pickle_numbers_find(&optimizer->state, number),
                              *step = pickle_get(state, "step");
    int64_t at = 0;
    tp_status st = TP_OK;

    if (!state)
        return tp_fail(err, TP_E_CORRUPT, "%s: the optimizer has no state of parameter %s",
                       path_of(x), param->name);
    TP_TRY(add_tensors(r, x, param, state, err));
    if (masters)
        TP_TRY(add_whole(r, x, param, GROUP_MASTER, find_master(masters, number), err));
    if (torch_pieces_is_number(step)) {
        TP_TRY(torch_pieces_number(&at, x, step, param->name, err));
        TP_TRY(piece_source_set_step(r->source, at, param->name, err));
        piece_source_set_tensor_steps(r->source);
    }
done:
    return st;
}

static tp_status add_optimizer(struct megatron_rank *r, struct torch_pieces *x,
                               const struct pickle_value *optimizer, enum megatron_part part,
                               struct tp_err *err)
{
    const struct pickle_value *inner = pickle_get(optimizer, "optimizer"),
                              *state = pickle_get(inner ? inner : optimizer, "state");
    struct ordinary_optimizer o = { .masters = pickle_get(optimizer, "fp32_from_fp16_params") };
    int64_t number = 0;
    tp_status st = TP_OK;

    if (pickle_entries(state) == 0)
        return TP_OK; /* no optimizer, or the distributed one */
    if (!pickle_numbers_make(&o.state, state, &x->arena))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", path_of(x));
    for (int vectors = 0; vectors < 2; vectors++)
        for (int i = 0; i < r->n_params && !st; i++)
            if ((r->params[i].ndim == 1) == vectors && megatron_part_has(part, r->params[i].expert))
                st = add_state(r, x, number++, &r->params[i], &o, err);
    if (!st && number != pickle_entries(state))
        st = tp_fail(err, TP_E_CORRUPT, "%s: the optimizer has %lld parameters, the model %lld",
                     path_of(x), (long long)pickle_entries(state), (long long)number);
    return st;
}

tp_status megatron_optimizer_add(struct megatron_rank *r, struct torch_pieces *x,
                                 struct tp_err *err)
{
    const struct pickle_value *optimizer = pickle_get(x->root, "optimizer");
    tp_status st;

    if (!pickle_is(optimizer, PICKLE_LIST))
        return add_optimizer(r, x, optimizer, ALL_PARAMS, err);
    /* ChainedOptimizer: with expert parallelism the experts have one of their own. */
    if (pickle_count(optimizer) != 2)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: has %lld optimizers; expected two, the second one for experts",
                       path_of(x), (long long)pickle_count(optimizer));
    st = add_optimizer(r, x, pickle_item(optimizer, 0), PARAMS_OF_LAYERS, err);
    return st ? st : add_optimizer(r, x, pickle_item(optimizer, 1), PARAMS_OF_EXPERTS, err);
}

/* ---- the distributed optimizer ---- */

static const struct {
    const char *key, *group;
} buffers[] = { { "exp_avg", GROUP_EXP_AVG },
                { "exp_avg_sq", GROUP_EXP_AVG_SQ },
                { "param", GROUP_MASTER } };

/* Find the parameters of buffer `number`, which has `numel` elements. Sizes of buckets are not
 * recorded, and matter only where parameters are not multiples of 64 elements. */
static tp_status find_params(struct megatron_flat *f, const struct megatron_rank *r,
                             const struct torch_pieces *x, int number, int64_t numel,
                             struct tp_err *err)
{
    tp_status st = megatron_flat_make(f, r, number, NULL, 0, err);

    if (!st && f->numel != numel)
        st = megatron_flat_make_whole(f, r, number, err);
    if (!st && f->numel != numel)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: the optimizer's buffer has %lld elements, but the parameters of the "
                     "model need %lld; if it has several buckets, they were not cut as its args "
                     "say",
                     path_of(x), (long long)numel, (long long)f->numel);
    return st;
}

/* Buffer `number`: {"param": ..., "exp_avg": ..., "numel_unpadded": ...}. */
static tp_status add_buffer(struct megatron_rank *r, struct torch_pieces *x, int number,
                            const struct pickle_value *buffer, struct tp_err *err)
{
    struct megatron_flat f;
    struct piece flat;
    int64_t numel = -1;
    tp_status st = TP_OK;

    if (!pickle_is(buffer, PICKLE_DICT) ||
        !pickle_int(&numel, pickle_get(buffer, "numel_unpadded")))
        return tp_fail(
            err, TP_E_CORRUPT,
            "%s: is not the state of a distributed optimizer with one buffer for each model "
            "chunk",
            path_of(x));
    TP_TRY(find_params(&f, r, x, number, numel, err));
    for (int i = 0; i < 3; i++) {
        TP_TRY(torch_pieces_tensor(&flat, x, pickle_get(buffer, buffers[i].key), buffers[i].group,
                                   buffers[i].key, err));
        if (flat.ndim != 1 || flat.stride[0] > 1 || flat.dtype == DTYPE_COUNT ||
            flat.shape[0] < numel)
            return tp_fail(err, TP_E_CORRUPT, "%s: %s is not a flat buffer of %lld elements",
                           path_of(x), buffers[i].key, (long long)numel);
        TP_TRY(megatron_flat_add(r, &f, &flat, 0, err));
    }
done:
    return st;
}

tp_status megatron_optimizer_add_buffers(struct megatron_rank *r, struct torch_pieces *x,
                                         const struct pickle_value *root, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < megatron_flat_buffers(r) && !st; i++) {
        const struct pickle_value *by_type = pickle_get_number(root, i);

        st = add_buffer(r, x, i, pickle_entries(by_type) == 1 ? pickle_entry(by_type, 0) : NULL,
                        err);
    }
    return st;
}

/* With expert parallelism the file has a list: the state of the layers, which is None where another
 * expert-parallel rank has the same, and that of the experts. */
static tp_status add_both_buffers(struct megatron_rank *r, struct torch_pieces *x,
                                  struct tp_err *err)
{
    tp_status st = TP_OK;

    if (pickle_count(x->root) != 2)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: has the state of %lld optimizers; expected two, the second one for "
                       "experts",
                       path_of(x), (long long)pickle_count(x->root));
    for (int experts = r->map.ep_rank > 0; experts < 2 && !st; experts++) {
        r->part = experts ? PARAMS_OF_EXPERTS : PARAMS_OF_LAYERS;
        st = megatron_optimizer_add_buffers(r, x, pickle_item(x->root, experts), err);
    }
    r->part = ALL_PARAMS;
    return st;
}

tp_status megatron_optimizer_add_distributed(struct megatron_rank *r, struct tp_err *err)
{
    struct torch_pieces x = { .source = r->source };
    char path[PATH_MAX];
    int file = 0;
    tp_status st;

    TP_TRY(megatron_rank_path(path, r, "distrib_optim.pt", err));
    if (!object_is_there(path) && !piece_source_is_distributed(r->source))
        return TP_OK; /* if the ranks before it have one, opening it says that it is missing */
    piece_source_set_distributed(r->source);
    TP_TRY(file_table_add(piece_source_files(r->source), &file, path, err));
    TP_TRY(torch_pieces_open(&x, r->source, file, 0, -1, err));
    if (r->args.ep > 1)
        TP_TRY(add_both_buffers(r, &x, err));
    else
        TP_TRY(megatron_optimizer_add_buffers(r, &x, x.root, err));
done:
    torch_pieces_close(&x);
    return st;
}
