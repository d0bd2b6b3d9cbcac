/* reshard/formats/gguf/gguf_tensors.c - see reshard/formats/gguf/gguf_tensors.h. */
#include "reshard/formats/gguf/gguf_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/family.h"
#include "layout/model_tensors.h"
#include "reshard/formats/gguf/gguf_q8_0.h"

/* llama.cpp's names of roles, without "blk.N." and without ".weight" or ".bias". */
static const char *const names[ROLE_COUNT] = {
    [ROLE_EMBEDDING] = "token_embd",
    [ROLE_POSITIONS] = "position_embd",
    [ROLE_ATTENTION_NORM] = "attn_norm",
    [ROLE_ATTENTION_NORM_BIAS] = "attn_norm",
    [ROLE_Q] = "attn_q",
    [ROLE_K] = "attn_k",
    [ROLE_V] = "attn_v",
    [ROLE_Q_BIAS] = "attn_q",
    [ROLE_K_BIAS] = "attn_k",
    [ROLE_V_BIAS] = "attn_v",
    [ROLE_Q_NORM] = "attn_q_norm",
    [ROLE_K_NORM] = "attn_k_norm",
    [ROLE_QKV] = "attn_qkv",
    [ROLE_QKV_BIAS] = "attn_qkv",
    [ROLE_OUT] = "attn_output",
    [ROLE_OUT_BIAS] = "attn_output",
    [ROLE_ATTENTION_POST_NORM] = "post_attention_norm",
    [ROLE_MLP_NORM] = "ffn_norm",
    [ROLE_MLP_NORM_BIAS] = "ffn_norm",
    [ROLE_GATE] = "ffn_gate",
    [ROLE_UP] = "ffn_up",
    [ROLE_GATE_BIAS] = "ffn_gate",
    [ROLE_UP_BIAS] = "ffn_up",
    [ROLE_GATE_UP] = "ffn_up",
    [ROLE_DOWN] = "ffn_down",
    [ROLE_DOWN_BIAS] = "ffn_down",
    [ROLE_MLP_POST_NORM] = "post_ffw_norm",
    [ROLE_ROUTER] = "ffn_gate_inp",
    [ROLE_EXPERT_GATE] = "ffn_gate_exps",
    [ROLE_EXPERT_UP] = "ffn_up_exps",
    [ROLE_EXPERT_DOWN] = "ffn_down_exps",
    [ROLE_FINAL_NORM] = "output_norm",
    [ROLE_FINAL_NORM_BIAS] = "output_norm",
    [ROLE_HEAD] = "output",
};

/* The layout that is being made. */
struct gguf_layout {
    struct gguf_tensors *out;
    const struct gguf_arch *arch;
    const struct export_contents *contents;
};

int64_t gguf_type_bytes(enum gguf_type type, int64_t n)
{
    if (type == GGUF_Q8_0)
        return n / GGUF_Q8_0_ELEMENTS * GGUF_Q8_0_BYTES;
    return n * dtype_bytes(gguf_type_dtype(type));
}

enum dtype gguf_type_dtype(enum gguf_type type)
{
    return type == GGUF_F16 ? DTYPE_F16 : type == GGUF_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

int64_t gguf_part_row(const struct gguf_part *p, int64_t row)
{
    const int64_t hd = p->head_dim, head = row / hd, i = row % hd;

    switch (p->order) {
    case GGUF_ORDER_PAIRS:
        return head * hd + i % (hd / 2) * 2 + i / (hd / 2);
    case GGUF_ORDER_QKV: /* here `head` counts q, k and v of each head */
        return (head % 3 * p->heads + head / 3) * hd + i;
    default:
        return row;
    }
}

/* Norms, biases, positions and routers stay f32. */
static enum gguf_type type_of(const struct gguf_layout *l, const struct tensor *t,
                              const struct gguf_part *p)
{
    const int64_t row = p->order == GGUF_ORDER_TRANSPOSED ? p->rows : p->columns;

    if (t->ndim == 1 || t->role == ROLE_POSITIONS || t->role == ROLE_ROUTER)
        return GGUF_F32;
    if (l->contents->q8_0)
        return row % GGUF_Q8_0_ELEMENTS == 0 ? GGUF_Q8_0 : GGUF_F16;
    return t->dtype == DTYPE_F16 ? GGUF_F16 : t->dtype == DTYPE_BF16 ? GGUF_BF16 : GGUF_F32;
}

static enum gguf_order order_of(const struct gguf_arch *a, const struct tensor *t)
{
    const bool is_q = t->role == ROLE_Q || t->role == ROLE_Q_BIAS,
               is_k = t->role == ROLE_K || t->role == ROLE_K_BIAS,
               is_qkv = t->role == ROLE_QKV || t->role == ROLE_QKV_BIAS;

    if (a->rope_pairs && (is_q || is_k))
        return GGUF_ORDER_PAIRS;
    if (a->qkv_by_head && is_qkv)
        return GGUF_ORDER_QKV;
    if (a->transposed && t->ndim == 2 && tensor_role_is_of_layer(t->role))
        return GGUF_ORDER_TRANSPOSED;
    return GGUF_ORDER_SAME;
}

static struct gguf_part make_part(const struct gguf_layout *l, const struct tensor *t)
{
    const struct model *m = l->contents->model;
    struct gguf_part p = { .name = t->name,
                           .order = order_of(l->arch, t),
                           .plus_one = l->arch->norms_plus_one && tensor_role_is_norm(t->role),
                           .rows = t->shape[0],
                           .columns = t->ndim == 2 ? t->shape[1] : 1,
                           .head_dim = m->head_dim,
                           .heads = m->heads };

    p.type = type_of(l, t, &p);
    return p;
}

/* Begin the file's tensor that t is, or is the first expert of. */
static void begin_tensor(struct gguf_layout *l, const struct tensor *t, const struct gguf_part *p)
{
    struct gguf_tensor *to = &l->out->list[l->out->n++];
    const char *kind = tensor_role_is_bias(t->role) ? "bias" : "weight";
    const bool transposed = p->order == GGUF_ORDER_TRANSPOSED;

    if (tensor_role_is_of_layer(t->role))
        snprintf(to->name, sizeof to->name, "blk.%d.%s.%s", t->layer, names[t->role], kind);
    else
        snprintf(to->name, sizeof to->name, "%s.%s", names[t->role], kind);
    to->type = p->type;
    to->dims[0] = t->ndim == 1 || transposed ? p->rows : p->columns;
    to->dims[1] = transposed ? p->columns : p->rows;
    to->ndim = t->ndim;
    if (tensor_role_is_of_expert(t->role)) {
        to->dims[to->ndim++] = 0;
        to->dims[2] = 0;
    }
    to->begin = (l->out->bytes + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN;
    l->out->bytes = to->begin;
}

static tp_status add_tensor(struct gguf_layout *l, int number, const struct tensor *t,
                            const struct tensor *last, struct tp_err *err)
{
    struct gguf_part p = make_part(l, t);
    struct gguf_tensor *to;

    if (!names[t->role])
        return tp_fail(err, TP_E_USAGE, "%s: GGUF has no place for tensor %s", l->contents->source,
                       t->name);
    if (!last || last->role != t->role || last->layer != t->layer)
        begin_tensor(l, t, &p);
    to = &l->out->list[l->out->n - 1];
    if (tensor_role_is_of_expert(t->role))
        to->dims[2]++;
    p.begin = l->out->bytes;
    l->out->bytes += gguf_type_bytes(p.type, p.rows * p.columns);
    to->bytes = l->out->bytes - to->begin;
    l->out->parts[number] = p;
    return TP_OK;
}

static void add_rope_factors(struct gguf_layout *l)
{
    struct gguf_tensor *to = &l->out->list[l->out->n];

    l->out->rope_factors = l->out->n++;
    snprintf(to->name, sizeof to->name, "rope_freqs.weight");
    to->type = GGUF_F32;
    to->ndim = 1;
    to->dims[0] = l->contents->model->head_dim / 2;
    to->begin = (l->out->bytes + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN;
    to->bytes = gguf_type_bytes(GGUF_F32, to->dims[0]);
    l->out->bytes = to->begin + to->bytes;
}

/* A tensor by its name, and its number among those that are written. */
struct gguf_named {
    const char *name;
    int number;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct gguf_named *)a)->name, ((const struct gguf_named *)b)->name);
}

/* All tensors that are written, ascending by name. */
static struct gguf_named *sorted_names(const struct export_contents *q, struct arena *arena)
{
    struct gguf_named *list = arena_array(arena, (size_t)q->n + 1, sizeof *list);

    for (int i = 0; list && i < q->n; i++)
        list[i] = (struct gguf_named){ q->tensors[i].name, i };
    if (list)
        qsort(list, (size_t)q->n, sizeof *list, by_name);
    return list;
}

tp_status gguf_tensors_make(struct gguf_tensors *out, const struct gguf_arch *a,
                            const struct export_contents *q, struct arena *arena,
                            struct tp_err *err)
{
    struct gguf_layout l = { out, a, q };
    struct gguf_named *sorted = sorted_names(q, arena), *found, key;
    struct tensor *params;
    int n = 0;
    tp_status st;

    *out = (struct gguf_tensors){ .rope_factors = -1 };
    out->list = arena_array(arena, (size_t)q->n + 2, sizeof *out->list);
    out->parts = arena_array(arena, (size_t)q->n + 1, sizeof *out->parts);
    if (!out->list || !out->parts || !sorted)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %d tensors", q->dir, q->n);
    TP_TRY(model_params(&params, &n, q->model, DTYPE_F32, arena, err));
    if (n != q->n)
        return tp_fail(err, TP_E_CORRUPT, "%s: the checkpoint has %d tensors, its model %d",
                       q->source, q->n, n);
    for (int i = 0; i < n; i++) {
        key.name = params[i].name;
        found = bsearch(&key, sorted, (size_t)q->n, sizeof key, by_name);
        if (!found)
            return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s of the model is missing", q->source,
                           params[i].name);
        params[i].dtype = q->tensors[found->number].dtype;
        TP_TRY(add_tensor(&l, found->number, &params[i], i ? &params[i - 1] : NULL, err));
    }
    if (gguf_model_has_rope_factors(q->model))
        add_rope_factors(&l);
done:
    return st;
}

void gguf_tensors_entries(struct gguf_bytes *b, const struct gguf_tensors *t)
{
    for (int i = 0; i < t->n; i++) {
        const struct gguf_tensor *x = &t->list[i];

        gguf_bytes_string(b, x->name);
        gguf_bytes_u32(b, (uint32_t)x->ndim);
        for (int d = 0; d < x->ndim; d++)
            gguf_bytes_u64(b, (uint64_t)x->dims[d]);
        gguf_bytes_u32(b, x->type);
        gguf_bytes_u64(b, (uint64_t)x->begin);
    }
}
