/* reshard/formats/megatron/megatron_map.c - see reshard/formats/megatron/megatron_map.h. */
#include "reshard/formats/megatron/megatron_map.h"

#include <stdlib.h>
#include <string.h>

#include "layout/family.h"
#include "layout/model_tensors.h"

/* How tensor parallelism cuts a tensor of Megatron. */
enum megatron_cut {
    MEGATRON_WHOLE,   /* every rank has it */
    MEGATRON_VOCAB,   /* rows of the padded vocabulary */
    MEGATRON_QKV,     /* rows of the groups of heads */
    MEGATRON_FC1,     /* a rank's rows of gate, then its rows of up */
    MEGATRON_COLUMNS, /* inputs; a bias is whole */
};

/* Megatron's modules, and what they are here. */
static const struct megatron_module {
    const char *name;
    enum tensor_role role;
    enum megatron_cut cut;
    const char *instead_of, *with; /* in the name of the role's tensor; NULL: nothing */
} modules[] = {
    { "embedding.word_embeddings", ROLE_EMBEDDING, MEGATRON_VOCAB, NULL, NULL },
    { "input_layernorm", ROLE_ATTENTION_NORM, MEGATRON_WHOLE, NULL, NULL },
    { "self_attention.linear_qkv", ROLE_Q, MEGATRON_QKV, NULL, NULL },
    { "self_attention.linear_proj", ROLE_OUT, MEGATRON_COLUMNS, NULL, NULL },
    { "self_attention.q_layernorm", ROLE_Q, MEGATRON_WHOLE, "q_proj", "q_norm" },
    { "self_attention.k_layernorm", ROLE_K, MEGATRON_WHOLE, "k_proj", "k_norm" },
    { "pre_mlp_layernorm", ROLE_MLP_NORM, MEGATRON_WHOLE, NULL, NULL },
    { "mlp.linear_fc1", ROLE_UP, MEGATRON_FC1, NULL, NULL },
    { "mlp.linear_fc2", ROLE_DOWN, MEGATRON_COLUMNS, NULL, NULL },
    { "decoder.final_layernorm", ROLE_FINAL_NORM, MEGATRON_WHOLE, NULL, NULL },
    { "output_layer", ROLE_HEAD, MEGATRON_VOCAB, NULL, NULL },
};

enum { MODULES = sizeof modules / sizeof *modules, NAME_ROOM = 512 };

tp_status megatron_map_make(struct megatron_map *out, const struct model *m, struct arena *arena,
                            struct tp_err *err)
{
    *out = (struct megatron_map){ .model = m, .arena = arena, .tp = 1, .padded_vocab = m->vocab };
    if (family_of(m)->in_out)
        return tp_fail(err, TP_E_USAGE,
                       "a %s in Megatron's format is not supported: its matrices are transposed",
                       family_of(m)->architecture);
    return model_params(&out->params, &out->n_params, m, DTYPE_F32, arena, err);
}

/* ---- the model's tensors ---- */

static const struct tensor *find_name(const struct megatron_map *map, const char *name)
{
    for (int i = 0; i < map->n_params; i++)
        if (strcmp(map->params[i].name, name) == 0)
            return &map->params[i];
    return NULL;
}

/* The tensor of a role: its weight, or its bias. */
static const struct tensor *find_role(const struct megatron_map *map, enum tensor_role role,
                                      int layer, bool bias)
{
    for (int i = 0; i < map->n_params; i++) {
        const struct tensor *t = &map->params[i];
        size_t n = strlen(t->name), weight = strlen(".weight");
        char name[NAME_ROOM];

        if (t->role != role || (layer >= 0 && t->layer != layer))
            continue;
        if (!bias)
            return t;
        if (n < weight || n >= NAME_ROOM || strcmp(t->name + n - weight, ".weight") != 0)
            return NULL;
        memcpy(name, t->name, n + 1);
        memcpy(name + n - weight, ".bias", sizeof ".bias");
        return find_name(map, name);
    }
    return NULL;
}

/* The same when its name is another tensor's with one word replaced. */
static const struct tensor *find_module(const struct megatron_map *map,
                                        const struct megatron_module *m, int layer, bool bias)
{
    const struct tensor *t = find_role(map, m->role, layer, bias);
    const char *at = t && m->with ? strstr(t->name, m->instead_of) : NULL;
    const char *name;

    if (!m->with)
        return t;
    name = at ? arena_printf(map->arena, "%.*s%s%s", (int)(at - t->name), t->name, m->with,
                             at + strlen(m->instead_of))
              : NULL;
    return name ? find_name(map, name) : NULL;
}

/* ---- rows ---- */

struct row_list {
    struct megatron_rows *rows;
    int n;
    int64_t begin, end; /* of this rank, in rows of the fused tensor */
};

/* Rows at .. at + n - 1 of the fused tensor are rows of t from `to` on. */
static void add_rows(struct row_list *l, const struct tensor *t, int64_t at, int64_t n, int64_t to)
{
    int64_t begin = at > l->begin ? at : l->begin, end = at + n < l->end ? at + n : l->end;

    if (begin < end)
        l->rows[l->n++] =
            (struct megatron_rows){ t, begin - l->begin, end - begin, to + begin - at, 0 };
}

static void add_qkv(struct row_list *l, const struct megatron_map *map, int layer, bool bias)
{
    const struct model *m = map->model;
    const struct tensor *q = find_role(map, ROLE_Q, layer, bias),
                        *k = find_role(map, ROLE_K, layer, bias),
                        *v = find_role(map, ROLE_V, layer, bias);
    const int64_t hd = m->head_dim, per_group = m->heads / m->kv_heads * hd;

    for (int g = 0; g < m->kv_heads && q && k && v; g++) {
        const int64_t at = g * (per_group + 2 * hd);

        add_rows(l, q, at, per_group, g * per_group);
        add_rows(l, k, at + per_group, hd, g * hd);
        add_rows(l, v, at + per_group + hd, hd, g * hd);
    }
}

static void add_fc1(struct row_list *l, const struct megatron_map *map, int layer, bool bias,
                    int64_t tp_rank)
{
    const struct tensor *gate = find_role(map, ROLE_GATE, layer, bias),
                        *up = find_role(map, ROLE_UP, layer, bias);
    const int64_t rows = map->model->ffn / map->tp;

    if (gate)
        l->rows[l->n++] = (struct megatron_rows){ gate, 0, rows, tp_rank * rows, 0 };
    if (up)
        l->rows[l->n++] = (struct megatron_rows){ up, gate ? rows : 0, rows, tp_rank * rows, 0 };
}

/* The module and the kind of a name: "mlp.linear_fc1.layer_norm_weight", as Transformer Engine
 * writes it, is the weight of the norm before it. */
static const struct megatron_module *parse(bool *bias, const char *name)
{
    const char *dot = strrchr(name, '.'), *kind = dot ? dot + 1 : "";
    const bool fused_norm = strncmp(kind, "layer_norm_", strlen("layer_norm_")) == 0;
    size_t n = dot ? (size_t)(dot - name) : 0;

    if (fused_norm)
        kind += strlen("layer_norm_");
    *bias = strcmp(kind, "bias") == 0;
    if (!*bias && strcmp(kind, "weight") != 0)
        return NULL;
    if (fused_norm) {
        name = strncmp(name, "mlp.", 4) == 0 ? "pre_mlp_layernorm" : "input_layernorm";
        n = strlen(name);
    }
    for (int i = 0; i < MODULES; i++)
        if (strlen(modules[i].name) == n && strncmp(modules[i].name, name, n) == 0)
            return &modules[i];
    return NULL;
}

enum megatron_found megatron_map_find(struct megatron_rows **rows, int *n,
                                      const struct megatron_map *map, const char *name, int layer,
                                      int64_t tp_rank)
{
    const struct model *m = map->model;
    const int64_t qkv = (m->heads + 2 * (int64_t)m->kv_heads) * m->head_dim;
    bool bias;
    const struct megatron_module *module = parse(&bias, name);
    const struct tensor *t = module ? find_module(map, module, layer, bias) : NULL;
    struct row_list l = { arena_array(map->arena, 3 * (size_t)m->kv_heads + 2, sizeof *l.rows), 0,
                          0, 0 };

    *rows = l.rows;
    if (!module || !l.rows || (module->role == ROLE_HEAD && m->tied))
        return module && l.rows ? MEGATRON_COPY : MEGATRON_UNKNOWN;
    if (!t)
        return MEGATRON_UNKNOWN;
    switch (module->cut) {
    case MEGATRON_VOCAB:
        l.begin = tp_rank * (map->padded_vocab / map->tp);
        l.end = l.begin + map->padded_vocab / map->tp;
        add_rows(&l, t, 0, m->vocab, 0);
        break;
    case MEGATRON_QKV:
        l.begin = tp_rank * (qkv / map->tp);
        l.end = l.begin + qkv / map->tp;
        add_qkv(&l, map, layer, bias);
        break;
    case MEGATRON_FC1:
        add_fc1(&l, map, layer, bias, tp_rank);
        break;
    default:
        l.end = t->shape[0];
        add_rows(&l, t, 0, t->shape[0], 0);
        if (module->cut == MEGATRON_COLUMNS && !bias)
            l.rows[0].column = tp_rank * (t->shape[1] / map->tp);
        else if (tp_rank > 0)
            return MEGATRON_COPY;
    }
    *n = l.n;
    return MEGATRON_FOUND;
}
