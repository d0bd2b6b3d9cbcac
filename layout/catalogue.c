/*
 * layout/catalogue.c - the tensors of each architecture, their shapes and their rules.
 * The tables are the parallel plan of Shoeybi et al. 2019 (Megatron-LM): column-parallel products
 * cut their output rows, row-parallel ones their input columns, the vocabulary is cut in both
 * embeddings, norms are replicated. Hugging Face stores a linear layer as [out, in].
 */
#include <string.h>

#include "layout/layout.h"

/* A dimension of a model, by name, so that shapes can stand in a table. */
enum dimension { NONE, VOCAB, HIDDEN, FFN, Q_WIDTH, KV_WIDTH };

/* What tensor parallelism does. */
enum cut { REPLICATED, VOCABULARY, HEADS_OUT, KV_OUT, HEADS_IN, FEATURES_OUT, FEATURES_IN };

struct entry {
    const char *name;
    enum dimension shape[2];
    enum cut cut;
};

static const struct entry llama_layer[] = {
    { "input_layernorm.weight", { HIDDEN, NONE }, REPLICATED },
    { "self_attn.q_proj.weight", { Q_WIDTH, HIDDEN }, HEADS_OUT },
    { "self_attn.k_proj.weight", { KV_WIDTH, HIDDEN }, KV_OUT },
    { "self_attn.v_proj.weight", { KV_WIDTH, HIDDEN }, KV_OUT },
    { "self_attn.o_proj.weight", { HIDDEN, Q_WIDTH }, HEADS_IN },
    { "post_attention_layernorm.weight", { HIDDEN, NONE }, REPLICATED },
    { "mlp.gate_proj.weight", { FFN, HIDDEN }, FEATURES_OUT },
    { "mlp.up_proj.weight", { FFN, HIDDEN }, FEATURES_OUT },
    { "mlp.down_proj.weight", { HIDDEN, FFN }, FEATURES_IN },
};
static const struct entry llama_embed = { "model.embed_tokens.weight",
                                          { VOCAB, HIDDEN },
                                          VOCABULARY };
static const struct entry llama_norm = { "model.norm.weight", { HIDDEN, NONE }, REPLICATED };
static const struct entry llama_head = { "lm_head.weight", { VOCAB, HIDDEN }, VOCABULARY };

enum { LLAMA_LAYER = sizeof llama_layer / sizeof llama_layer[0] };

static int64_t size_of(enum dimension d, const struct model *m)
{
    switch (d) {
    case VOCAB:
        return m->vocab;
    case HIDDEN:
        return m->hidden;
    case FFN:
        return m->ffn;
    case Q_WIDTH:
        return m->heads * m->head_dim;
    case KV_WIDTH:
        return m->kv_heads * m->head_dim;
    default:
        return 0;
    }
}

static struct rule rule_of(enum cut cut, const struct model *m)
{
    struct rule r = { .dim = -1, .unit = 1, .blocks = 1 };

    switch (cut) {
    case VOCABULARY:
        r.dim = 0;
        r.pad = true;
        break;
    case HEADS_OUT:
        r.dim = 0;
        r.unit = m->head_dim;
        break;
    case KV_OUT:
        r.dim = 0;
        r.unit = m->head_dim;
        r.share = true;
        break;
    case HEADS_IN:
        r.dim = 1;
        r.unit = m->head_dim;
        break;
    case FEATURES_OUT:
        r.dim = 0;
        break;
    case FEATURES_IN:
        r.dim = 1;
        break;
    default:
        break;
    }
    return r;
}

static struct tensor make(const struct entry *e, const char *name, const char *group,
                          enum dtype dtype, int layer, const struct model *m)
{
    struct tensor t = { .name = name, .group = group, .dtype = dtype, .layer = layer };

    for (t.ndim = 0; t.ndim < 2 && e->shape[t.ndim] != NONE; t.ndim++)
        t.shape[t.ndim] = size_of(e->shape[t.ndim], m);
    t.rule = rule_of(e->cut, m);
    return t;
}

static int param_count(const struct model *m)
{
    return m->layers * LLAMA_LAYER + 2 + (m->tied ? 0 : 1);
}

/* Write the parameters as one group to t; false when memory is out. */
static bool fill_group(struct tensor *t, const char *group, enum dtype dtype, const struct model *m,
                       struct arena *arena)
{
    *t++ = make(&llama_embed, llama_embed.name, group, dtype, LAYER_FIRST, m);
    for (int layer = 0; layer < m->layers; layer++)
        for (int i = 0; i < LLAMA_LAYER; i++) {
            const char *name =
                arena_printf(arena, "model.layers.%d.%s", layer, llama_layer[i].name);

            if (!name)
                return false;
            *t++ = make(&llama_layer[i], name, group, dtype, layer, m);
        }
    *t++ = make(&llama_norm, llama_norm.name, group, dtype, LAYER_LAST, m);
    if (!m->tied)
        *t = make(&llama_head, llama_head.name, group, dtype, LAYER_LAST, m);
    return true;
}

tp_status model_params(struct tensor **tensors, int *n, const struct model *m, enum dtype dtype,
                       struct arena *arena, struct tp_err *err)
{
    int count = param_count(m);
    struct tensor *t = arena_array(arena, (size_t)count, sizeof *t);

    if (!t || !fill_group(t, GROUP_PARAM, dtype, m, arena))
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", count);
    *tensors = t;
    *n = count;
    return TP_OK;
}

tp_status model_state(struct tensor **tensors, int *n, const struct model *m, enum dtype dtype,
                      struct arena *arena, struct tp_err *err)
{
    static const char *const groups[] = { GROUP_PARAM, GROUP_MASTER, GROUP_EXP_AVG,
                                          GROUP_EXP_AVG_SQ };
    int count = param_count(m), filled = 0;
    struct tensor *t = arena_array(arena, 4 * (size_t)count, sizeof *t);

    if (!t || !fill_group(t, GROUP_PARAM, dtype, m, arena))
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", 4 * count);
    filled = count;
    for (int g = 1; g < 4; g++) {
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
