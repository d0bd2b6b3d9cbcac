/* reshard/formats/vllm/vllm_map.c - see reshard/formats/vllm/vllm_map.h. */
#include "reshard/formats/vllm/vllm_map.h"

#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "layout/family.h"

enum { VOCAB_UNIT = 64, PARTS_MAX = 3 };

/* What vLLM's attention has in its state dict for a quantized cache of keys and values. */
static const char *const scales[] = { "k", "prob", "q", "v" };
enum { SCALES = sizeof scales / sizeof *scales };

/* How a rank's tensor is cut. */
enum vllm_cut {
    VLLM_WHOLE, /* every rank has it */
    VLLM_NONE,  /* it is a part of another one */
    VLLM_VOCAB, /* rows of the padded vocabulary */
    VLLM_QKV,   /* heads of query, key and value */
    VLLM_FUSED, /* query, key and value, which are one tensor in the model's files too */
    VLLM_OUT,   /* outputs, of one or of two tensors */
    VLLM_PAIR,  /* gate and up, which are one tensor in the model's files too */
    VLLM_IN,    /* inputs */
};

/* The first tensor of a fused one says how that is cut. */
static enum vllm_cut cut_of(const struct vllm_rank *r, const struct tensor *t)
{
    static const enum vllm_cut cuts[ROLE_COUNT] = {
        [ROLE_K] = VLLM_NONE,         [ROLE_V] = VLLM_NONE,          [ROLE_K_BIAS] = VLLM_NONE,
        [ROLE_V_BIAS] = VLLM_NONE,    [ROLE_EMBEDDING] = VLLM_VOCAB, [ROLE_HEAD] = VLLM_VOCAB,
        [ROLE_Q] = VLLM_QKV,          [ROLE_Q_BIAS] = VLLM_QKV,      [ROLE_QKV] = VLLM_FUSED,
        [ROLE_QKV_BIAS] = VLLM_FUSED, [ROLE_GATE] = VLLM_OUT,        [ROLE_GATE_BIAS] = VLLM_OUT,
        [ROLE_UP] = VLLM_OUT,         [ROLE_UP_BIAS] = VLLM_OUT,     [ROLE_GATE_UP] = VLLM_PAIR,
        [ROLE_OUT] = VLLM_IN,         [ROLE_DOWN] = VLLM_IN,
    };
    if ((t->role == ROLE_UP || t->role == ROLE_UP_BIAS) && family_is_gated(family_of(r->model)))
        return VLLM_NONE;
    return cuts[t->role];
}

/* ---- the model ---- */

/* vLLM has models of its own for these. Others it makes of transformers' modules, whose names
 * depend on the version. */
static bool has_family(enum model_family family)
{
    switch (family) {
    case MODEL_LLAMA:
    case MODEL_MISTRAL:
    case MODEL_QWEN2:
    case MODEL_QWEN3:
    case MODEL_GEMMA:
    case MODEL_GEMMA2:
    case MODEL_GEMMA3:
    case MODEL_PHI3:
    case MODEL_GRANITE:
    case MODEL_GPT2:
    case MODEL_OPT:
        return true;
    default:
        return false;
    }
}

tp_status vllm_map_check_model(const struct model *m, const char *path, struct tp_err *err)
{
    if (m->family == MODEL_OF_RULES || !has_family(m->family))
        return tp_fail(err, TP_E_USAGE,
                       "%s: the names that vLLM gives to the tensors of a model of %s are not "
                       "known here; use the format safetensors, which vLLM loads too",
                       path,
                       m->family == MODEL_OF_RULES ? "an unknown architecture"
                                                   : family_of(m)->architecture);
    return TP_OK;
}

int64_t vllm_map_padded_vocab(const struct model *m)
{
    return (m->vocab + VOCAB_UNIT - 1) / VOCAB_UNIT * VOCAB_UNIT;
}

/* ---- names ---- */

/* The name with `from` replaced by `to`. NULL: memory is out. */
static const char *replaced(const char *name, const char *from, const char *to, struct arena *arena)
{
    const char *at = strstr(name, from);

    return at ? arena_printf(arena, "%.*s%s%s", (int)(at - name), name, to, at + strlen(from))
              : name;
}

static const char *name_of(const struct model *m, const struct tensor *t, struct arena *arena)
{
    switch (t->role) {
    case ROLE_EMBEDDING:
        return vllm_map_embedding(m);
    case ROLE_Q:
    case ROLE_Q_BIAS:
        return replaced(t->name, ".q_proj.", ".qkv_proj.", arena);
    case ROLE_GATE:
    case ROLE_GATE_BIAS:
        return replaced(t->name, ".gate_proj.", ".gate_up_proj.", arena);
    default:
        return t->name;
    }
}

const char *vllm_map_embedding(const struct model *m)
{
    return m->tied && m->family != MODEL_GEMMA2
               ? "lm_head.weight"
               : family_tensor_find(family_of(m), ROLE_EMBEDDING)->name;
}

bool vllm_map_is_embedding(const struct model *m, const char *name)
{
    return strcmp(name, vllm_map_embedding(m)) == 0 ||
           strcmp(name, family_tensor_find(family_of(m), ROLE_EMBEDDING)->name) == 0;
}

/* ---- parts ---- */

static bool is_transposed(const struct vllm_rank *r, const struct tensor *t)
{
    return family_of(r->model)->in_out && t->ndim == 2 && tensor_role_is_of_layer(t->role);
}

static int64_t outputs_of(const struct vllm_rank *r, const struct tensor *t)
{
    return t->shape[is_transposed(r, t)];
}

static int64_t inputs_of(const struct vllm_rank *r, const struct tensor *t)
{
    return t->ndim == 2 ? t->shape[!is_transposed(r, t)] : 1;
}

/* A run of outputs of a tensor, or of its inputs for all outputs. */
struct vllm_run {
    int64_t lo, n;
};

/* Add these outputs and inputs of t behind the outputs that p has. */
static void add_part(struct vllm_param *p, const struct vllm_rank *r, const struct tensor *t,
                     struct vllm_run out, struct vllm_run in, bool copy)
{
    const bool transposed = is_transposed(r, t);
    struct vllm_part *part = &p->parts[p->n_parts++];

    *part = (struct vllm_part){ .tensor = t,
                                .box = { .ndim = t->ndim },
                                .at = p->shape[0] * in.n,
                                .stride = in.n,
                                .transposed = transposed,
                                .copy = copy };
    part->box.lo[transposed] = out.lo;
    part->box.len[transposed] = out.n;
    if (t->ndim == 2) {
        part->box.lo[!transposed] = in.lo;
        part->box.len[!transposed] = in.n;
    }
    p->ndim = t->ndim;
    p->shape[0] += out.n;
    p->shape[1] = in.n;
}

/* Add some outputs with all inputs. */
static void add_outputs(struct vllm_param *p, const struct vllm_rank *r, const struct tensor *t,
                        int64_t lo, int64_t n, bool copy)
{
    add_part(p, r, t, (struct vllm_run){ lo, n }, (struct vllm_run){ 0, inputs_of(r, t) }, copy);
}

/* Add the rank's part of a block of outputs that begins at `from`. */
static void add_block(struct vllm_param *p, const struct vllm_rank *r, const struct tensor *t,
                      int64_t from, int64_t n)
{
    add_outputs(p, r, t, from + r->tp_rank * (n / r->tp), n / r->tp, false);
}

/* The same of keys or values: with fewer heads than ranks, neighbouring ranks have the same one. */
static void add_heads(struct vllm_param *p, const struct vllm_rank *r, const struct tensor *t,
                      int64_t from)
{
    const int64_t heads = r->model->kv_heads, hd = r->model->head_dim;
    const int64_t sharing = heads < r->tp ? r->tp / heads : 1;

    if (sharing == 1)
        add_block(p, r, t, from, heads * hd);
    else
        add_outputs(p, r, t, from + r->tp_rank / sharing * hd, hd, r->tp_rank % sharing != 0);
}

/* Rows of the vocabulary; behind them the rank's tensor has padding. */
static void add_vocabulary(struct vllm_param *p, const struct vllm_rank *r, const struct tensor *t)
{
    const int64_t rows = vllm_map_padded_vocab(r->model) / r->tp, vocab = t->shape[0];
    const int64_t begin = r->tp_rank * rows, end = begin + rows;
    const int64_t lo = begin < vocab ? begin : vocab, hi = end < vocab ? end : vocab;

    add_outputs(p, r, t, lo, hi - lo, false);
    p->shape[0] = rows;
}

/* ---- tensors ---- */

/* The tensor of a role behind params[i], in the same layer; NULL: there is none. */
static const struct tensor *next_of(const struct vllm_rank *r, int i, enum tensor_role role)
{
    const int layer = r->params[i].layer;

    for (i++; i < r->n_params && r->params[i].layer == layer; i++)
        if (r->params[i].role == role)
            return &r->params[i];
    return NULL;
}

static void add_qkv(struct vllm_param *p, const struct vllm_rank *r, int i)
{
    const struct tensor *q = &r->params[i];
    const bool bias = q->role == ROLE_Q_BIAS;
    const struct tensor *k = next_of(r, i, bias ? ROLE_K_BIAS : ROLE_K),
                        *v = next_of(r, i, bias ? ROLE_V_BIAS : ROLE_V);

    add_block(p, r, q, 0, outputs_of(r, q));
    if (k && v) {
        add_heads(p, r, k, 0);
        add_heads(p, r, v, 0);
    }
}

static void add_fused(struct vllm_param *p, const struct vllm_rank *r, const struct tensor *t)
{
    const int64_t hd = r->model->head_dim, q = r->model->heads * hd;

    add_block(p, r, t, 0, q);
    add_heads(p, r, t, q);
    add_heads(p, r, t, q + r->model->kv_heads * hd);
}

/* Outputs of a tensor, and behind those of gate those of up. */
static void add_mlp(struct vllm_param *p, const struct vllm_rank *r, int i)
{
    const struct tensor *t = &r->params[i];
    const struct tensor *up = t->role == ROLE_GATE        ? next_of(r, i, ROLE_UP)
                              : t->role == ROLE_GATE_BIAS ? next_of(r, i, ROLE_UP_BIAS)
                                                          : NULL;

    add_block(p, r, t, 0, outputs_of(r, t));
    if (up)
        add_block(p, r, up, 0, outputs_of(r, up));
}

static void add_inputs(struct vllm_param *p, const struct vllm_rank *r, const struct tensor *t)
{
    const int64_t n = inputs_of(r, t) / r->tp;

    add_part(p, r, t, (struct vllm_run){ 0, outputs_of(r, t) },
             (struct vllm_run){ r->tp_rank * n, n }, false);
}

/* Fill in the parts of the tensor whose first part is of params[i]. */
static void add_parts(struct vllm_param *p, const struct vllm_rank *r, int i)
{
    const struct tensor *t = &r->params[i];
    const int64_t outputs = outputs_of(r, t);

    switch (cut_of(r, t)) {
    case VLLM_VOCAB:
        add_vocabulary(p, r, t);
        break;
    case VLLM_QKV:
        add_qkv(p, r, i);
        break;
    case VLLM_FUSED:
        add_fused(p, r, t);
        break;
    case VLLM_OUT:
        add_mlp(p, r, i);
        break;
    case VLLM_PAIR:
        add_block(p, r, t, 0, outputs / 2);
        add_block(p, r, t, outputs / 2, outputs / 2);
        break;
    case VLLM_IN:
        add_inputs(p, r, t);
        break;
    default:
        add_outputs(p, r, t, 0, outputs, r->tp_rank > 0);
    }
}

/* ---- the list ---- */

static tp_status check_divides(const struct model *m, int tp, struct tp_err *err)
{
    const struct {
        const char *what;
        int64_t n;
    } all[] = { { "query heads", m->heads },
                { "rows of its MLP", m->ffn },
                { "rows of the padded vocabulary", vllm_map_padded_vocab(m) } };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].n % tp != 0)
            return tp_fail(err, TP_E_LAYOUT,
                           "vLLM cannot cut this model for tp%d: tp must divide the %lld %s", tp,
                           (long long)all[i].n, all[i].what);
    if (m->kv_heads % tp != 0 && tp % m->kv_heads != 0)
        return tp_fail(err, TP_E_LAYOUT,
                       "vLLM cannot cut this model for tp%d: tp must divide the %d key-value "
                       "heads, or be a multiple of their number",
                       tp, m->kv_heads);
    return TP_OK;
}

/* The scales are those of the module beside the projection of attention's output. */
static bool add_scales(struct vllm_param *list, int *n, const struct tensor *out,
                       struct arena *arena)
{
    const size_t weight = strlen(".weight"), length = strlen(out->name);
    size_t parent = length > weight ? length - weight : 0;

    while (parent > 0 && out->name[parent - 1] != '.')
        parent--;
    for (int i = 0; i < SCALES; i++) {
        const char *name =
            arena_printf(arena, "%.*sattn._%s_scale", (int)parent, out->name, scales[i]);

        if (!name)
            return false;
        list[(*n)++] = (struct vllm_param){ .name = name, .shape = { 1, 1 } };
    }
    return true;
}

static int by_name(const void *a, const void *b)
{
    const struct vllm_param *x = a, *y = b;
    const bool x_scale = text_ends_with(x->name, "_scale"),
               y_scale = text_ends_with(y->name, "_scale");

    return x_scale != y_scale ? y_scale - x_scale : strcmp(x->name, y->name);
}

tp_status vllm_map_list(struct vllm_param **out, int *n, const struct vllm_rank *r,
                        struct arena *arena, struct tp_err *err)
{
    const size_t room = (size_t)r->n_params + (size_t)r->model->layers * SCALES + 1;
    struct vllm_param *list = arena_array(arena, room, sizeof *list);
    tp_status st = check_divides(r->model, r->tp, err);

    *out = list;
    *n = 0;
    for (int i = 0; i < r->n_params && list && !st; i++) {
        struct vllm_param *p = &list[*n];

        if (cut_of(r, &r->params[i]) == VLLM_NONE)
            continue;
        *p = (struct vllm_param){ .name = name_of(r->model, &r->params[i], arena),
                                  .parts = arena_array(arena, PARTS_MAX, sizeof *p->parts) };
        if (!p->name || !p->parts)
            return tp_fail(err, TP_E_NOMEM, "no memory for a list of vLLM's tensors");
        add_parts(p, r, i);
        ++*n;
        if (r->params[i].role == ROLE_OUT && !add_scales(list, n, &r->params[i], arena))
            return tp_fail(err, TP_E_NOMEM, "no memory for a list of vLLM's tensors");
    }
    if (!list)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of vLLM's tensors");
    qsort(list, (size_t)*n, sizeof *list, by_name);
    return st;
}

const struct vllm_param *vllm_map_find(const struct vllm_param *list, int n, const struct model *m,
                                       const char *name)
{
    const struct vllm_param key = { .name = vllm_map_is_embedding(m, name) ? vllm_map_embedding(m)
                                                                           : name };

    return bsearch(&key, list, (size_t)n, sizeof *list, by_name);
}
