/* reshard/formats/megatron/megatron_modules.c - see reshard/formats/megatron/megatron_modules.h. */
#include "reshard/formats/megatron/megatron_modules.h"

#include <string.h>

#include "reshard/formats/megatron/megatron_stages.h"

enum { LAYER_MODULES = 8 };

/* The modules of a layer as Megatron-core makes them. Transformer Engine has each norm in the
 * linear layer after it, so that its input_layernorm comes after linear_proj, which is made
 * first. */
static const char *const local_modules[LAYER_MODULES] = { "input_layernorm",
                                                          "self_attention.linear_proj",
                                                          "self_attention.linear_qkv",
                                                          "self_attention.q_layernorm",
                                                          "self_attention.k_layernorm",
                                                          "pre_mlp_layernorm",
                                                          "mlp.linear_fc1",
                                                          "mlp.linear_fc2" };
static const char *const engine_modules[LAYER_MODULES] = { "self_attention.linear_proj",
                                                           "input_layernorm",
                                                           "self_attention.linear_qkv",
                                                           "self_attention.q_layernorm",
                                                           "self_attention.k_layernorm",
                                                           "pre_mlp_layernorm",
                                                           "mlp.linear_fc1",
                                                           "mlp.linear_fc2" };

/* How the experts of a layer begin. */
#define LOCAL_EXPERT MEGATRON_EXPERTS "local_experts.%d.linear_fc%d"

/* The shape of a parameter on each tensor-parallel rank: its rows on the first one, which has all
 * of the parameters. */
static bool find_shape(struct megatron_rank_param *p, const struct megatron_rank *r, int layer)
{
    const struct tensor *t;
    struct megatron_rows *rows;
    int n = 0;

    if (megatron_map_is_vocabulary(p->name)) {
        p->ndim = 2;
        p->shape[0] = r->map.padded_vocab / r->map.tp;
        p->shape[1] = r->map.model->hidden;
        return true;
    }
    if (megatron_map_find(&rows, &n, &r->map, p->name, layer, 0) != MEGATRON_FOUND || n == 0)
        return false;
    t = rows[0].tensor;
    p->ndim = t->ndim;
    for (int i = 0; i < n; i++)
        p->shape[0] += rows[i].n;
    p->shape[1] = t->ndim == 2 ? megatron_rows_columns(&rows[0]) : 0;
    if (strstr(p->name, "linear_proj.weight") || strstr(p->name, "linear_fc2.weight"))
        p->shape[1] /= r->map.tp;
    return true;
}

/* Add the parameter `module`.`kind`, if the model has it. */
static tp_status add_param(struct megatron_rank *r, const char *module, const char *kind, int chunk,
                           int layer, struct tp_err *err)
{
    struct megatron_rank_param *p = &r->params[r->n_params];
    enum megatron_found found;

    *p = (struct megatron_rank_param){ .name = arena_printf(r->map.arena, "%s.%s", module, kind),
                                       .chunk = chunk };
    if (!p->name)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its parameters", r->dir);
    p->expert = megatron_map_is_expert(p->name);
    if (megatron_stacked_is(p->name)) {
        r->n_params += megatron_stacked_find(p, r, p->name, layer);
        return TP_OK;
    }
    found = megatron_map_find(&p->rows, &p->n_rows, &r->map, p->name, layer, r->tp_rank);
    if (found == MEGATRON_UNKNOWN || !find_shape(p, r, layer))
        return TP_OK;
    p->shared = r->map.model->tied && r->args.pp > 1 && megatron_map_is_vocabulary(p->name);
    r->n_params++;
    return TP_OK;
}

static tp_status add_module(struct megatron_rank *r, const char *module, int chunk, int layer,
                            struct tp_err *err)
{
    tp_status st = add_param(r, module, "weight", chunk, layer, err);

    return st ? st : add_param(r, module, "bias", chunk, layer, err);
}

/* The router and this rank's experts. Grouped layers have all first matrices, then all second
 * ones. */
static tp_status add_experts(struct megatron_rank *r, int chunk, int layer, struct tp_err *err)
{
    const int n = r->map.model->experts / r->map.ep;
    const bool grouped = r->args.experts == MEGATRON_EXPERTS_GROUPED;
    tp_status st = add_param(r, "mlp.router", "weight", chunk, layer, err);

    for (int i = 0; i < 2 && r->args.experts == MEGATRON_EXPERTS_STACKED && !st; i++)
        st = add_param(r, "mlp.experts", i ? "weight2" : "weight1", chunk, layer, err);
    for (int i = 0; i < 2 * n && r->args.experts != MEGATRON_EXPERTS_STACKED && !st; i++) {
        const char *module = arena_printf(r->map.arena, LOCAL_EXPERT, grouped ? i % n : i / 2,
                                          1 + (grouped ? i / n : i % 2));

        st = module ? add_param(r, module, "weight", chunk, layer, err)
                    : tp_fail(err, TP_E_NOMEM, "%s: no memory for its parameters", r->dir);
    }
    return st;
}

static tp_status add_chunk(struct megatron_rank *r, int chunk, struct tp_err *err)
{
    const char *const *modules = r->args.local_modules ? local_modules : engine_modules;
    const int stage = chunk * r->args.pp + r->pp_rank, stages = r->args.pp * r->args.vpp;
    const struct megatron_stage_layers layers =
        megatron_stages_find(&r->args, r->map.model->layers, r->pp_rank, chunk);
    tp_status st = TP_OK;

    if (stage == 0) {
        TP_TRY(add_param(r, "embedding.word_embeddings", "weight", chunk, -1, err));
        TP_TRY(add_param(r, "embedding.position_embeddings", "weight", chunk, -1, err));
    }
    for (int layer = layers.first; layer < layers.first + layers.n; layer++) {
        for (int i = 0; i < LAYER_MODULES; i++)
            TP_TRY(add_module(r, modules[i], chunk, layer, err));
        if (r->map.model->experts > 0)
            TP_TRY(add_experts(r, chunk, layer, err));
    }
    if (stage == stages - 1) {
        TP_TRY(add_module(r, "decoder.final_layernorm", chunk, -1, err));
        if (!r->map.model->tied || stages > 1)
            TP_TRY(add_param(r, "output_layer", "weight", chunk, -1, err));
    }
done:
    return st;
}

tp_status megatron_modules_list(struct megatron_rank *r, struct tp_err *err)
{
    const size_t experts = r->map.model->experts > 0 ? (size_t)r->map.model->experts + 1 : 0,
                 room = 2 * ((size_t)r->map.model->layers * (LAYER_MODULES + experts) + 4) + 1;
    tp_status st = TP_OK;

    r->n_params = 0;
    r->params = arena_array(r->map.arena, room, sizeof *r->params);
    if (!r->params)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its parameters", r->dir);
    for (int chunk = 0; chunk < r->args.vpp && !st; chunk++)
        st = add_chunk(r, chunk, err);
    return st;
}
