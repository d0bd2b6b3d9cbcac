/* reshard/formats/megatron/megatron_params.c - see reshard/formats/megatron/megatron_params.h. */
#include "reshard/formats/megatron/megatron_params.h"

#include <stdlib.h>
#include <string.h>

#include "layout/family.h"

#define EMBEDDING "embedding.word_embeddings.weight"
#define HEAD      "output_layer.weight"

/* The modules of a layer, in the order in which PyTorch lists their parameters. Transformer Engine
 * has a norm in the linear layer after it, which is made after linear_proj. */
static const struct megatron_layer_module {
    const char *name;
    bool linear;
    const char *in; /* the linear layer that has it there */
} layer_modules[] = { { "input_layernorm", false, "self_attention.linear_qkv" },
                      { "self_attention.linear_proj", true, NULL },
                      { "self_attention.linear_qkv", true, NULL },
                      { "self_attention.q_layernorm", false, NULL },
                      { "self_attention.k_layernorm", false, NULL },
                      { "pre_mlp_layernorm", false, "mlp.linear_fc1" },
                      { "mlp.linear_fc1", true, NULL },
                      { "mlp.linear_fc2", true, NULL },
                      { "mlp.router", false, NULL } };

enum {
    LAYER_MODULES = sizeof layer_modules / sizeof *layer_modules,
    EXPERT_MODULES = 2,
    KINDS = 2,
    OTHERS = 5
};

static const char *const kinds[KINDS] = { "weight", "bias" };

/* The list as it grows. */
struct megatron_param_list {
    const struct megatron_map *map;
    const struct megatron_chunk *at;
    struct megatron_param *params;
    int n;
};

/* Rows and columns of the rank's tensor. Its first rows tell the columns; they cover all rows but
 * the padding of the vocabulary. */
static void fill_shape(struct megatron_param *p, const struct megatron_map *map, const char *name,
                       bool cut_columns)
{
    const struct tensor *t = p->rows[0].tensor;

    p->ndim = t->ndim;
    p->shape[1] = megatron_rows_columns(&p->rows[0]) / (cut_columns ? map->tp : 1);
    p->shape[0] = 0;
    for (int i = 0; i < p->n_rows; i++)
        p->shape[0] += p->rows[i].n;
    if (megatron_map_is_vocabulary(name))
        p->shape[0] = map->padded_vocab / map->tp;
}

static tp_status no_memory(struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "no memory for the list of Megatron's tensors");
}

/* The rows of a module's weight or bias on the rank, those that every rank has included. *n is 0
 * when the model has no such tensor. */
static tp_status find_rows(struct megatron_rows **rows, int *n, const struct megatron_map *map,
                           const char *name, int layer, int tp_rank, struct tp_err *err)
{
    enum megatron_found found;

    *n = 0;
    found = megatron_map_find(rows, n, map, name, layer, tp_rank);
    if (*rows && found == MEGATRON_COPY && tp_rank > 0)
        (void)megatron_map_find(rows, n, map, name, layer, 0);
    return *rows ? TP_OK : no_memory(err);
}

/* Add a parameter if the model has it. `as` is the name by which the map knows it; p has its name
 * for Megatron, and what follows from the module. */
static tp_status add(struct megatron_param_list *l, const char *as, struct megatron_param p,
                     struct tp_err *err)
{
    const int layer = p.layer;
    const char *dot = strrchr(as, '.');
    const bool cut_columns = dot && strcmp(dot, ".weight") == 0 &&
                             (strstr(as, "linear_proj") || strstr(as, "linear_fc2"));
    tp_status st = find_rows(&p.rows, &p.n_rows, l->map, as, layer, l->at->tp_rank, err);

    if (st)
        return st;
    if (!p.name)
        return no_memory(err);
    if (p.n_rows == 0 && layer >= 0)
        return TP_OK;
    if (p.n_rows == 0) { /* a rank that has only padding: the first one tells the columns */
        st = find_rows(&p.rows, &p.n_rows, l->map, as, layer, 0, err);
        if (st || p.n_rows == 0)
            return st;
        fill_shape(&p, l->map, as, false);
        p.n_rows = 0;
    } else {
        fill_shape(&p, l->map, as, cut_columns);
    }
    l->params[l->n++] = p;
    return TP_OK;
}

/* Add a parameter outside of layers, if the model has it. `as` is as above. */
static tp_status add_other(struct megatron_param_list *l, const char *as, const char *name,
                           struct tp_err *err)
{
    const struct megatron_param p = {
        .name = name, .layer = -1, .linear = strcmp(name, HEAD) == 0, .expert = -1
    };

    return add(l, as, p, err);
}

static tp_status add_first(struct megatron_param_list *l, struct tp_err *err)
{
    static const char positions[] = "embedding.position_embeddings.weight";
    const tp_status st = add_other(l, EMBEDDING, EMBEDDING, err);

    return st ? st : add_other(l, positions, positions, err);
}

/* With stages, the last one has a copy of a tied embedding as its head. */
static tp_status add_last(struct megatron_param_list *l, bool first, struct tp_err *err)
{
    static const char *const norm[KINDS] = { "decoder.final_layernorm.weight",
                                             "decoder.final_layernorm.bias" };
    const bool tied = l->map->model->tied;
    tp_status st = TP_OK;

    for (int k = 0; k < KINDS && !st; k++)
        st = add_other(l, norm[k], norm[k], err);
    if (!st && (!tied || !first))
        st = add_other(l, tied ? EMBEDDING : HEAD, HEAD, err);
    return st;
}

static bool is_engine(const struct megatron_param_list *l)
{
    return l->at->modules.impl == EXPORT_IMPL_ENGINE;
}

/* Whether a norm is in the linear layer after it. Experts have no norm in them. */
static bool is_inside(const struct megatron_param_list *l, const struct megatron_layer_module *m)
{
    return is_engine(l) && m->in &&
           (l->map->model->experts == 0 || strncmp(m->in, "mlp.", strlen("mlp.")) != 0);
}

/* Add weight and bias of a module of a layer, whose number in its chunk is `local`. */
static tp_status add_module(struct megatron_param_list *l, const struct megatron_layer_module *m,
                            int layer, int local, struct tp_err *err)
{
    struct arena *arena = l->map->arena;
    tp_status st = TP_OK;

    for (int k = 0; k < KINDS && !st; k++) {
        const char *as = arena_printf(arena, "%s.%s", m->name, kinds[k]);
        const struct megatron_param p = {
            .name = is_inside(l, m)
                        ? arena_printf(arena, "decoder.layers.%d.%s.layer_norm_%s", local, m->in,
                                       kinds[k])
                        : arena_printf(arena, "decoder.layers.%d.%s.%s", local, m->name, kinds[k]),
            .layer = layer,
            .linear = m->linear && k == 0,
            .expert = -1,
        };

        st = as ? add(l, as, p, err) : no_memory(err);
    }
    return st;
}

/* Add matrix `fc`, from 1 on, of expert e of this rank. */
static tp_status add_expert(struct megatron_param_list *l, int layer, int local, int e, int fc,
                            struct tp_err *err)
{
    const int experts = l->map->model->experts / l->map->ep;
    const bool grouped = l->at->modules.experts == EXPORT_EXPERTS_GROUPED;
    struct arena *arena = l->map->arena;
    const char *as =
        arena_printf(arena, MEGATRON_EXPERTS "local_experts.%d.linear_fc%d.weight", e, fc);
    const struct megatron_param p = {
        .name = grouped ? arena_printf(arena,
                                       "decoder.layers.%d." MEGATRON_EXPERTS "linear_fc%d.weight%d",
                                       local, fc, e)
                        : arena_printf(arena, "decoder.layers.%d.%s", local, as ? as : ""),
        .layer = layer,
        .linear = true,
        .expert = l->map->ep_rank * experts + e,
    };

    return as ? add(l, as, p, err) : no_memory(err);
}

/* The matrices of this rank's experts: of each in turn, or all first ones, then all second ones. */
static tp_status add_experts(struct megatron_param_list *l, int layer, int local,
                             struct tp_err *err)
{
    const int n = l->map->model->experts / l->map->ep;
    const bool grouped = l->at->modules.experts == EXPORT_EXPERTS_GROUPED;
    tp_status st = TP_OK;

    for (int i = 0; i < n * EXPERT_MODULES && !st; i++)
        st = add_expert(l, layer, local, grouped ? i % n : i / EXPERT_MODULES,
                        1 + (grouped ? i / n : i % EXPERT_MODULES), err);
    return st;
}

static tp_status add_layer(struct megatron_param_list *l, int layer, int local, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < LAYER_MODULES && !st; i++) {
        const int at = is_engine(l) && i < 2 ? 1 - i : i; /* linear_proj, then input_layernorm */

        st = add_module(l, &layer_modules[at], layer, local, err);
    }
    return st ? st : add_experts(l, layer, local, err);
}

static tp_status check_divides(const struct megatron_map *map, const struct megatron_chunk *at,
                               struct tp_err *err)
{
    const struct model *m = map->model;
    const struct {
        const char *what;
        int64_t n, by;
    } rules[] = { { "layers by pp * vpp", m->layers, (int64_t)at->pp * at->vpp },
                  { "rows of query, key and value by tp",
                    (m->heads + 2 * (int64_t)m->kv_heads) * m->head_dim, map->tp },
                  { "columns of the attention's output by tp", m->heads * m->head_dim, map->tp },
                  { "columns of the MLP's output by tp", m->expert_ffn ? m->expert_ffn : m->ffn,
                    map->tp },
                  { "experts by ep", m->experts, map->ep } };

    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].n % rules[i].by != 0)
            return tp_fail(err, TP_E_LAYOUT,
                           "Megatron cuts %s, but %lld are not divisible by %lld; choose another "
                           "layout",
                           rules[i].what, (long long)rules[i].n, (long long)rules[i].by);
    return TP_OK;
}

tp_status megatron_params_list(struct megatron_param **params, int *n,
                               const struct megatron_map *map, const struct megatron_chunk *at,
                               struct tp_err *err)
{
    const int per_chunk = map->model->layers / (at->pp * at->vpp);
    const bool first = at->pp_rank == 0 && at->chunk == 0,
               last = at->pp_rank == at->pp - 1 && at->chunk == at->vpp - 1;
    struct megatron_param_list l = { map, at, NULL, 0 };
    size_t per_layer = LAYER_MODULES;
    tp_status st = check_divides(map, at, err);

    if (st)
        return st;
    per_layer += (size_t)(map->model->experts / map->ep) * EXPERT_MODULES;
    l.params = arena_array(map->arena, (size_t)per_chunk * per_layer * KINDS + OTHERS + 1,
                           sizeof *l.params);
    if (!l.params)
        return no_memory(err);
    if (first)
        TP_TRY(add_first(&l, err));
    for (int i = 0; i < per_chunk; i++)
        TP_TRY(add_layer(&l, (at->chunk * at->pp + at->pp_rank) * per_chunk + i, i, err));
    if (last)
        TP_TRY(add_last(&l, first, err));
    *params = l.params;
    *n = l.n;
done:
    return st;
}

tp_status megatron_params_place(struct torch_target *x, int storage, int tensor,
                                const struct megatron_param *p, const struct megatron_rows *rows,
                                int64_t at, struct tp_err *err)
{
    const struct box box = megatron_rows_box(rows, 0, p->shape[1]);

    return rows->transposed ? torch_target_add_transposed(x, storage, tensor, &box, at, err)
                            : torch_target_add(x, storage, tensor, &box, at, err);
}

static const char *const groups[MEGATRON_GROUPS] = { GROUP_PARAM, GROUP_MASTER, GROUP_EXP_AVG,
                                                     GROUP_EXP_AVG_SQ };

/* A group that is there has each parameter. Masters may be those of some weights only, where the
 * others are f32. */
static tp_status check_groups(const struct megatron_numbers *x, const struct megatron_map *map,
                              const char *path, struct tp_err *err)
{
    for (int i = 0; i < map->n_params; i++)
        for (int g = 0; g < MEGATRON_GROUPS; g++)
            if (x->has[g] && x->of[i * MEGATRON_GROUPS + g] < 0)
                return tp_fail(err, TP_E_USAGE,
                               "%s: has no %s/%s, and Megatron-LM needs all of %s; %s", path,
                               groups[g], map->params[i].name, groups[g],
                               g == MEGATRON_PARAM ? "the checkpoint is not complete"
                               : g == MEGATRON_MASTER
                                   ? "with --dtype f32 there are none, because weights are their "
                                     "own masters then; --no-optim writes the weights only"
                                   : "--no-optim writes the weights only");
    return TP_OK;
}

tp_status megatron_params_number(struct megatron_numbers *out, const struct megatron_map *map,
                                 const struct layout *l, const char *path, struct tp_err *err)
{
    tp_status st;

    *out = (struct megatron_numbers){
        .of = arena_array(map->arena, (size_t)map->n_params * MEGATRON_GROUPS + 1, sizeof *out->of)
    };
    if (!out->of)
        return no_memory(err);
    for (int i = 0; i < map->n_params; i++)
        for (int g = 0; g < MEGATRON_GROUPS; g++) {
            const int at = layout_find(l, groups[g], map->params[i].name);

            out->of[i * MEGATRON_GROUPS + g] = at;
            out->has[g] |= at >= 0;
        }
    st = check_groups(out, map, path, err);
    if (st)
        return st;
    if (out->has[MEGATRON_EXP_AVG] && !out->has[MEGATRON_MASTER] &&
        l->tensors[out->of[MEGATRON_PARAM]].dtype != DTYPE_F32)
        return tp_fail(err, TP_E_USAGE,
                       "%s: has moments but no masters, so weights that are not f32 would lose "
                       "bits; leave --dtype out, or add --no-optim",
                       path);
    return TP_OK;
}

static tp_status fail_beyond(const struct model *m, const char *what, struct tp_err *err)
{
    return tp_fail(err, TP_E_USAGE,
                   "%s: the arguments written for Megatron-LM do not say its %s, so Megatron-LM "
                   "would compute another model; export another format",
                   family_of(m)->architecture, what);
}

/* window_size is of all layers. */
static tp_status check_windows(const struct model *m, struct tp_err *err)
{
    for (int i = 0; m->sliding_window > 0 && i < m->layers; i++)
        if (!family_layer_has_window(m, i))
            return fail_beyond(m, "layers without a sliding window", err);
    return TP_OK;
}

tp_status megatron_params_check(const struct megatron_map *map, struct tp_err *err)
{
    const char *beyond = family_of(map->model)->beyond_megatron;
    const struct megatron_chunk all = { .pp = 1, .vpp = 1 };
    struct megatron_map whole = *map;
    struct megatron_param *params = NULL;
    bool *seen = calloc((size_t)map->n_params + 1, sizeof *seen);
    int n = 0;
    tp_status st;

    if (!seen)
        return no_memory(err);
    if (beyond) {
        st = fail_beyond(map->model, beyond, err);
        goto done;
    }
    whole.tp = whole.ep = 1;
    TP_TRY(megatron_params_list(&params, &n, &whole, &all, err));
    for (int i = 0; i < n; i++)
        for (int k = 0; k < params[i].n_rows; k++)
            seen[params[i].rows[k].tensor - map->params] = true;
    for (int i = 0; i < map->n_params && !st; i++)
        if (!seen[i])
            st = tp_fail(err, TP_E_USAGE,
                         "tensor %s of this model has no place in Megatron-LM's format, as it is "
                         "written here",
                         map->params[i].name);
    if (!st)
        st = check_windows(map->model, err);
done:
    free(seen);
    return st;
}
