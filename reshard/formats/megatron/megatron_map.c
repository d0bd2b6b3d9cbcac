/* reshard/formats/megatron/megatron_map.c - see reshard/formats/megatron/megatron_map.h. */
#include "reshard/formats/megatron/megatron_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/family.h"
#include "layout/model_tensors.h"
#include "layout/parallel_plan.h"

#define EMBEDDING "embedding.word_embeddings.weight"
#define HEAD      "output_layer.weight"

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
} modules[] = {
    { "embedding.word_embeddings", ROLE_EMBEDDING, MEGATRON_VOCAB },
    { "embedding.position_embeddings", ROLE_POSITIONS, MEGATRON_WHOLE },
    { "input_layernorm", ROLE_ATTENTION_NORM, MEGATRON_WHOLE },
    { "self_attention.linear_qkv", ROLE_Q, MEGATRON_QKV },
    { "self_attention.linear_proj", ROLE_OUT, MEGATRON_COLUMNS },
    { "self_attention.q_layernorm", ROLE_Q_NORM, MEGATRON_WHOLE },
    { "self_attention.k_layernorm", ROLE_K_NORM, MEGATRON_WHOLE },
    { "pre_mlp_layernorm", ROLE_MLP_NORM, MEGATRON_WHOLE },
    { "mlp.linear_fc1", ROLE_UP, MEGATRON_FC1 },
    { "mlp.linear_fc2", ROLE_DOWN, MEGATRON_COLUMNS },
    { "mlp.router", ROLE_ROUTER, MEGATRON_WHOLE },
    { "mlp.experts.linear_fc1", ROLE_EXPERT_UP, MEGATRON_FC1 },
    { "mlp.experts.linear_fc2", ROLE_EXPERT_DOWN, MEGATRON_COLUMNS },
    { "decoder.final_layernorm", ROLE_FINAL_NORM, MEGATRON_WHOLE },
    { "output_layer", ROLE_HEAD, MEGATRON_VOCAB },
};

enum { MODULES = sizeof modules / sizeof *modules, NAME_ROOM = 512 };

/* What a name says. */
struct megatron_name {
    const struct megatron_module *module;
    int layer;  /* -1: outside of layers */
    int expert; /* of the model; 0 where there is none */
    bool bias;
};

/* The tensors of layer i begin at (i + 1) * ROLE_COUNT, those outside of layers at 0. */
static int *index_of(const struct megatron_map *map, enum tensor_role role, int layer)
{
    return &map->first[((size_t)(layer < 0 ? -1 : layer) + 1) * ROLE_COUNT + role];
}

tp_status megatron_map_make(struct megatron_map *out, const struct model *m, struct arena *arena,
                            struct tp_err *err)
{
    tp_status st;

    *out = (struct megatron_map){
        .model = m, .arena = arena, .tp = 1, .ep = 1, .padded_vocab = m->vocab, .expert_cuts = 1
    };
    st = model_params(&out->params, &out->n_params, m, DTYPE_F32, arena, err);
    if (st)
        return st;
    out->first = arena_array(arena, ((size_t)m->layers + 1) * ROLE_COUNT, sizeof *out->first);
    if (!out->first)
        return tp_fail(err, TP_E_NOMEM, "no memory for an index of %d tensors", out->n_params);
    for (int i = out->n_params - 1; i >= 0; i--)
        *index_of(out, out->params[i].role, out->params[i].layer) = i + 1;
    return TP_OK;
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
                                      const struct megatron_name *name)
{
    const size_t weight = strlen(".weight");
    const int first = *index_of(map, role, name->layer);
    const struct tensor *t = first ? &map->params[first - 1 + name->expert] : NULL;
    const size_t n = t ? strlen(t->name) : 0;
    char bias[NAME_ROOM];

    if (!t || !name->bias)
        return t;
    if (tensor_role_is_of_expert(role) || n < weight || n >= NAME_ROOM ||
        strcmp(t->name + n - weight, ".weight") != 0)
        return NULL;
    memcpy(bias, t->name, n + 1);
    memcpy(bias + n - weight, ".bias", sizeof ".bias");
    return find_name(map, bias);
}

/* The tensor of a module, or one of its tensors. GPT-2 has query, key and value in one, each as a
 * block, and GPT-NeoX head by head; other families that fuse them have more that Megatron does not
 * have. OPT's table of positions begins with rows that are none. */
static const struct tensor *find_tensor(const struct megatron_map *map,
                                        const struct megatron_name *name)
{
    const enum tensor_role role = name->module->role;
    const struct family *family = family_of(map->model);
    const bool is_fused = family->in_out || (map->is_neox && family->qkv_by_head);

    if (role == ROLE_POSITIONS && family->extra_positions > 0)
        return NULL;
    return find_role(map, role == ROLE_Q && is_fused ? ROLE_QKV : role, name);
}

/* ---- rows ---- */

/* The axis of a matrix's outputs is the second one. */
static bool is_transposed(const struct megatron_map *map, const struct tensor *t)
{
    return family_of(map->model)->in_out && t->ndim == 2 && tensor_role_is_of_layer(t->role);
}

static int64_t outputs_of(const struct megatron_map *map, const struct tensor *t)
{
    return t->shape[is_transposed(map, t)];
}

struct box megatron_rows_box(const struct megatron_rows *rows, int64_t column, int64_t n)
{
    const int out = rows->transposed, in = 1 - out;
    struct box b = { .ndim = rows->tensor->ndim };

    b.lo[out] = rows->to;
    b.len[out] = rows->n;
    if (b.ndim == 2) {
        b.lo[in] = rows->column + column;
        b.len[in] = n;
    }
    return b;
}

int64_t megatron_rows_columns(const struct megatron_rows *rows)
{
    return rows->tensor->ndim == 2 ? rows->tensor->shape[!rows->transposed] : 1;
}

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
            (struct megatron_rows){ t, begin - l->begin, end - begin, to + begin - at, 0, false };
}

/* Padding has logits, too, and Megatron's loss counts them. Zero may be far above a model's own
 * logits (those of GPT-2 are about -35), so when it is written it has what the last token has, as
 * in Megatron-LM's own converter (tools/checkpoint/saver_base.py). */
static void add_vocabulary(struct row_list *l, const struct megatron_map *map,
                           const struct tensor *t)
{
    const int64_t last = map->model->vocab - 1;

    if (!map->repeats_last_row || map->padded_vocab == map->model->vocab) {
        add_rows(l, t, 0, map->model->vocab, 0);
        return;
    }
    add_rows(l, t, 0, last, 0);
    for (int64_t at = last; at < map->padded_vocab; at++)
        add_rows(l, t, at, 1, last);
}

/* Each rank's queries, then its keys, then its values. first: of all queries, keys and values, in
 * their tensors. */
static void add_blocks_of_ranks(struct row_list *l, const struct megatron_map *map,
                                const struct tensor *const *qkv, const int64_t *first)
{
    const struct model *m = map->model;
    int64_t at = 0;

    for (int64_t rank = 0; rank < map->qkv_ranks; rank++)
        for (int i = 0; i < 3; i++) {
            const int64_t n = (i == 0 ? m->heads : m->kv_heads) / map->qkv_ranks * m->head_dim;

            add_rows(l, qkv[i], at, n, first[i] + rank * n);
            at += n;
        }
}

static void add_qkv(struct row_list *l, const struct megatron_map *map,
                    const struct megatron_name *name)
{
    const struct model *m = map->model;
    const struct tensor *q = find_role(map, ROLE_Q, name), *k = find_role(map, ROLE_K, name),
                        *v = find_role(map, ROLE_V, name);
    const int64_t hd = m->head_dim, per_group = m->heads / m->kv_heads * hd;
    int64_t k_at = 0, v_at = 0;

    if (!q) {
        q = k = v = find_tensor(map, name);
        k_at = m->heads * hd;
        v_at = k_at + m->kv_heads * hd;
    }
    if (q && family_of(m)->qkv_by_head) {
        add_rows(l, q, 0, outputs_of(map, q), 0);
        return;
    }
    if (q && k && v && map->qkv_ranks > 0) {
        add_blocks_of_ranks(l, map, (const struct tensor *[]){ q, k, v },
                            (const int64_t[]){ 0, k_at, v_at });
        return;
    }
    for (int g = 0; g < m->kv_heads && q && k && v; g++) {
        const int64_t at = g * (per_group + 2 * hd);

        add_rows(l, q, at, per_group, g * per_group);
        add_rows(l, k, at + per_group, hd, k_at + g * hd);
        add_rows(l, v, at + per_group + hd, hd, v_at + g * hd);
    }
}

/* Add the blocks of gate and up in turn. A tensor of torch_dist has the first half of the rows of
 * each rank, then the second halves; a rank's own tensor is the case of one rank. */
static void add_blocks(struct row_list *l, const struct megatron_map *map,
                       const struct tensor *gate, const struct tensor *up, int64_t rows,
                       int64_t tp_rank)
{
    const int64_t block = map->expert_block, of_rank = rows / map->expert_cuts;

    for (int64_t rank = 0; rank < map->expert_cuts; rank++)
        for (int64_t i = 0; i < 2 * of_rank / block; i++) {
            const int64_t at = i * block, half = at / of_rank,
                          to = tp_rank * rows + rank * of_rank + i / 2 * block;

            l->rows[l->n++] = (struct megatron_rows){
                i % 2 ? up : gate, half * rows + rank * of_rank + at % of_rank, block, to, 0, false
            };
        }
}

/* `up` is the tensor of the module's role. */
static void add_fc1(struct row_list *l, const struct megatron_map *map, const struct tensor *up,
                    const struct megatron_name *name, int64_t tp_rank)
{
    const bool expert = name->module->role == ROLE_EXPERT_UP;
    const struct tensor *gate = find_role(map, expert ? ROLE_EXPERT_GATE : ROLE_GATE, name);
    const int64_t rows = outputs_of(map, up) / map->tp;

    if (gate && expert && map->expert_block > 0) {
        add_blocks(l, map, gate, up, rows, tp_rank);
        return;
    }
    if (gate)
        l->rows[l->n++] =
            (struct megatron_rows){ gate, map->is_neox ? rows : 0, rows, tp_rank * rows, 0, false };
    l->rows[l->n++] = (struct megatron_rows){ up,   gate && !map->is_neox ? rows : 0,
                                              rows, tp_rank * rows,
                                              0,    false };
}

/* ---- names ---- */

static const struct megatron_module *find_module(const char *name, size_t n)
{
    for (int i = 0; i < MODULES; i++)
        if (strlen(modules[i].name) == n && strncmp(modules[i].name, name, n) == 0)
            return &modules[i];
    return NULL;
}

/* Take the number of an expert of this rank out of a name that begins with "mlp.experts.":
 * "local_experts.3.linear_fc1.weight", or "linear_fc1.weight3", as Transformer Engine's grouped
 * layers have it, becomes "mlp.experts.linear_fc1.weight" in `out`. False: it has none. */
static bool take_expert(char out[NAME_ROOM], int *expert, const struct megatron_map *map,
                        const char *name)
{
    static const char local[] = "local_experts.";
    const char *rest = name + strlen(MEGATRON_EXPERTS), *digits = rest + strlen(rest);
    char *end;
    long number;

    if (strncmp(rest, local, sizeof local - 1) == 0) {
        digits = rest + sizeof local - 1;
        number = strtol(digits, &end, 10);
        if (*end != '.')
            return false;
        snprintf(out, NAME_ROOM, MEGATRON_EXPERTS "%s", end + 1);
    } else {
        while (digits > rest && digits[-1] >= '0' && digits[-1] <= '9')
            digits--;
        number = strtol(digits, &end, 10);
        snprintf(out, NAME_ROOM, "%.*s", (int)(digits - name), name);
    }
    if (*digits < '0' || *digits > '9' || number >= map->model->experts / map->ep)
        return false;
    *expert = map->ep_rank * (map->model->experts / map->ep) + (int)number;
    return true;
}

/* The module and the kind of a name: "mlp.linear_fc1.layer_norm_weight", as Transformer Engine
 * writes it, is the weight of the norm before it. */
static bool parse(struct megatron_name *out, const struct megatron_map *map, const char *name,
                  int layer)
{
    char of_expert[NAME_ROOM];
    const char *dot, *kind;
    bool fused_norm;
    size_t n;

    *out = (struct megatron_name){ .layer = layer };
    if (megatron_map_is_expert(name)) {
        if (!take_expert(of_expert, &out->expert, map, name))
            return false;
        name = of_expert;
    }
    dot = strrchr(name, '.');
    kind = dot ? dot + 1 : "";
    n = dot ? (size_t)(dot - name) : 0;
    fused_norm = strncmp(kind, "layer_norm_", strlen("layer_norm_")) == 0;
    if (fused_norm) {
        kind += strlen("layer_norm_");
        name = strncmp(name, "mlp.", 4) == 0 ? "pre_mlp_layernorm" : "input_layernorm";
        n = strlen(name);
    }
    out->bias = strcmp(kind, "bias") == 0;
    out->module = find_module(name, n);
    return out->module && (out->bias || strcmp(kind, "weight") == 0);
}

bool megatron_map_is_vocabulary(const char *name)
{
    return strcmp(name, EMBEDDING) == 0 || strcmp(name, HEAD) == 0;
}

bool megatron_map_is_expert(const char *name)
{
    return strncmp(name, MEGATRON_EXPERTS, strlen(MEGATRON_EXPERTS)) == 0;
}

/* Rows of padding, and the one that they repeat, on this rank. */
static int64_t repeated_rows(const struct megatron_map *map, int64_t tp_rank)
{
    const int64_t of_rank = map->padded_vocab / map->tp, end = (tp_rank + 1) * of_rank;
    const int64_t rows = end - (map->model->vocab - 1);

    return rows < 0 ? 0 : rows < of_rank ? rows : of_rank;
}

/* The most runs of rows that a module's tensor can have on a rank. */
static size_t room_of(const struct megatron_map *map, const struct megatron_module *module,
                      int64_t tp_rank)
{
    const struct model *m = map->model;
    const int64_t ffn = m->expert_ffn ? m->expert_ffn : m->ffn;
    const int64_t blocks = map->qkv_ranks > 0 ? map->qkv_ranks : m->kv_heads;
    size_t room = module && module->cut == MEGATRON_QKV ? 3 * (size_t)blocks : 2;

    if (module && module->role == ROLE_EXPERT_UP && map->expert_block > 0)
        room += 2 * (size_t)(ffn / map->expert_block);
    if (module && module->cut == MEGATRON_VOCAB && map->repeats_last_row)
        room += (size_t)repeated_rows(map, tp_rank);
    return room;
}

enum megatron_found megatron_map_find(struct megatron_rows **rows, int *n,
                                      const struct megatron_map *map, const char *name, int layer,
                                      int64_t tp_rank)
{
    const struct model *m = map->model;
    const int64_t qkv = (m->heads + 2 * (int64_t)m->kv_heads) * m->head_dim;
    struct megatron_name parsed;
    const bool known = parse(&parsed, map, name, layer);
    const struct megatron_module *module = parsed.module;
    const struct tensor *t = known ? find_tensor(map, &parsed) : NULL;
    struct row_list l = { arena_array(map->arena, room_of(map, module, tp_rank), sizeof *l.rows), 0,
                          0, 0 };

    *rows = l.rows;
    if (!known || !l.rows || (module->role == ROLE_HEAD && m->tied))
        return known && l.rows ? MEGATRON_COPY : MEGATRON_UNKNOWN;
    if (!t)
        return MEGATRON_UNKNOWN;
    switch (module->cut) {
    case MEGATRON_VOCAB:
        l.begin = tp_rank * (map->padded_vocab / map->tp);
        l.end = l.begin + map->padded_vocab / map->tp;
        add_vocabulary(&l, map, t);
        break;
    case MEGATRON_QKV:
        l.begin = tp_rank * (qkv / map->tp);
        l.end = l.begin + qkv / map->tp;
        add_qkv(&l, map, &parsed);
        break;
    case MEGATRON_FC1:
        add_fc1(&l, map, t, &parsed, tp_rank);
        break;
    default:
        l.end = outputs_of(map, t);
        add_rows(&l, t, 0, l.end, 0);
        l.rows[0].transposed = is_transposed(map, t);
        if (module->cut == MEGATRON_COLUMNS && !parsed.bias)
            l.rows[0].column = tp_rank * (megatron_rows_columns(&l.rows[0]) / map->tp);
        else if (tp_rank > 0)
            return MEGATRON_COPY;
    }
    for (int i = 0; i < l.n; i++)
        l.rows[i].transposed = is_transposed(map, l.rows[i].tensor);
    *n = l.n;
    return MEGATRON_FOUND;
}

enum megatron_found megatron_map_find_own(struct megatron_rows **rows, int *n,
                                          const struct megatron_map *map, const char *name,
                                          int layer, int64_t tp_rank)
{
    struct tensor *head;
    enum megatron_found found;

    if (!map->model->tied || layer >= 0 || strcmp(name, HEAD) != 0)
        return megatron_map_find(rows, n, map, name, layer, tp_rank);
    found = megatron_map_find(rows, n, map, EMBEDDING, -1, tp_rank);
    head = arena_array(map->arena, 1, sizeof *head);
    if (!head)
        *rows = NULL;
    for (int i = 0; found == MEGATRON_FOUND && *rows && i < *n; i++) {
        *head = *(*rows)[i].tensor;
        head->name = parallel_plan_end_name(map->model, ROLE_HEAD);
        (*rows)[i].tensor = head;
    }
    return found;
}
