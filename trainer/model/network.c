/* trainer/model/network.c - see trainer/model/network.h. */
#include "trainer/model/network.h"

#include <math.h>
#include <string.h>

#include "layout/family.h"
#include "trainer/model/rotary_table.h"

/* What the views of a rank's parameters are made from. */
struct source {
    const struct network *net;
    const struct layout *layout;
    const struct params *params;
    int layer; /* whose parameters they are; LAYER_FIRST or LAYER_LAST */
};

static const struct param *find(const struct source *s, enum tensor_role role)
{
    int i = params_find(s->params, s->layout, role, s->layer);

    return i < 0 ? NULL : &s->params->list[i];
}

static tp_status need(const struct param **out, const struct source *s, enum tensor_role role,
                      struct tp_err *err)
{
    *out = find(s, role);
    if (!*out)
        return tp_fail(err, TP_E_INTERNAL, "%s of layer %d is not among this rank's tensors",
                       tensor_role_name(role), s->layer);
    return TP_OK;
}

static bool is_cut(const struct source *s, const struct param *p)
{
    return s->layout->tensors[p->tensor].placement.dim >= 0;
}

/* The layers of this rank's stages, virtual stage by virtual stage. */
static void list_layers(struct network *n, const struct layout *l, int rank)
{
    int pp = mesh_coord_of(&l->spec, rank).pp;

    n->n_layers = 0;
    for (int c = 0; c < n->n_vstages; c++) {
        n->vstages[c].first = n->n_layers;
        for (int i = 0; i < l->n_layers; i++)
            if (l->stage_of[i] == c * l->spec.pp + pp)
                n->layer_numbers[n->n_layers++] = i;
        n->vstages[c].n = n->n_layers - n->vstages[c].first;
    }
}

/* Find the FSDP units of the network's parts. */
static void find_units(struct network *n, const struct params *p)
{
    bool joined = n->model->tied && n->is_first && n->is_last;

    n->first_unit = n->is_first ? params_unit(p, LAYER_FIRST) : -1;
    n->last_unit = n->is_last ? params_unit(p, joined ? LAYER_FIRST : LAYER_LAST) : -1;
    for (int i = 0; i < n->n_layers; i++)
        n->layers[i].unit = params_unit(p, n->layer_numbers[i]);
}

static struct network_vocab_rows count_rows(const struct source *s, enum tensor_role role)
{
    const struct param *p = find(s, role);
    struct network_vocab_rows rows = { 0 };

    if (p && p->n) {
        rows.per_shard = p->box.len[0];
        rows.first = p->box.lo[0];
    }
    for (int i = 0; p && i < s->params->n; i++)
        if (s->params->list[i].tensor == p->tensor && s->params->list[i].n)
            rows.total += s->params->list[i].box.len[0];
    return rows;
}

/* Count the rows of the embedding and of the head. */
static void count_vocabulary(struct network *n, const struct layout *l, const struct params *p)
{
    const struct source first = { n, l, p, LAYER_FIRST }, last = { n, l, p, LAYER_LAST };

    if (n->is_first)
        n->table = count_rows(&first, ROLE_EMBEDDING);
    if (n->is_last)
        n->logit =
            n->model->tied ? count_rows(&first, ROLE_EMBEDDING) : count_rows(&last, ROLE_HEAD);
}

int64_t network_vocab_rows_of(const struct network_vocab_rows *v, int shard, int64_t *first)
{
    int64_t left = v->total - shard * v->per_shard;

    *first = v->first + shard * v->per_shard;
    return left < 0 ? 0 : left < v->per_shard ? left : v->per_shard;
}

static double or_one(double factor)
{
    return factor > 0 ? factor : 1;
}

/* With residual_multiplier r a block adds r times what it computes. If the residual is kept divided
 * by r, the block adds what it computes, so that nothing needs to be multiplied in a pass of its
 * own. An RMS norm, which alone reads the residual, has the same result if its eps is divided by
 * r^2. */
static void scale_residual(struct network *n)
{
    const struct model *m = n->model;
    double r = or_one(m->residual_multiplier);
    double embedding =
        family_of(m)->scaled_embedding ? sqrt((double)m->hidden) : or_one(m->embedding_multiplier);

    n->embedding_factor = (float)(embedding / r);
    n->residual_eps = (float)(m->norm_eps / (r * r));
}

tp_status network_init(struct network *n, const struct model *m, const struct layout *l,
                       const struct params *p, const struct rank_dims *d, int rank,
                       struct arena *arena, struct tp_err *err)
{
    struct mesh_coord at = mesh_coord_of(&l->spec, rank);

    *n = (struct network){ .model = m,
                           .dtype = d->dtype,
                           .inner = d->inner,
                           .outer = d->outer,
                           .recompute = d->recompute,
                           .tokens = zigzag_of(&l->spec, at.cp, d->seq * l->spec.cp),
                           .seq = d->seq,
                           .split = d->split,
                           .is_sharded = p->sharded,
                           .is_first = d->is_first,
                           .is_last = d->is_last,
                           .n_vstages = l->spec.vpp,
                           .shards = d->shards,
                           .n_virtual = d->n_virtual,
                           .same_bits = d->same_bits,
                           .heads = d->heads,
                           .kv_heads = d->kv_heads,
                           .ffn = d->ffn,
                           .q_width = d->q_width,
                           .kv_width = d->kv_width,
                           .qkv_width = d->qkv_width,
                           .has_qkv_by_head = d->has_qkv_by_head,
                           .is_parallel = m->parallel_residual,
                           .norms_all_heads = d->has_whole_norms,
                           .up_width = d->up_width,
                           .experts = d->experts,
                           .per_token = d->per_token,
                           .token_copies = d->token_copies,
                           .load = d->load };
    n->vstages = arena_array(arena, (size_t)n->n_vstages, sizeof *n->vstages);
    n->layer_numbers = arena_array(arena, (size_t)m->layers, sizeof *n->layer_numbers);
    n->layers = arena_array(arena, (size_t)m->layers, sizeof *n->layers);
    if (!n->vstages || !n->layer_numbers || !n->layers)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d layers", m->layers);
    scale_residual(n);
    list_layers(n, l, rank);
    find_units(n, p);
    count_vocabulary(n, l, p);
    return TP_OK;
}

/* ---- views ---- */

/* The distance in elements between the shards of an entry's tensor. */
static int64_t stride_of(const struct source *s, const struct param *p)
{
    return params_stride(s->params, (int)(p - s->params->list));
}

/* Matrices of a layer, whose outputs are side by side. Where outputs come first, those of fused
 * parts follow each other in memory and are one matrix. */
static int parts_of(const struct source *s, const struct param *w, enum tensor_role role)
{
    return role == ROLE_QKV && family_of(s->net->model)->in_out && is_cut(s, w) ? 3 : 1;
}

/* A linear layer of this rank; bias: its role, or ROLE_NONE. */
static tp_status bind_linear(struct linear *out, const struct source *s, enum tensor_role role,
                             enum tensor_role bias, int64_t width, int64_t in, struct tp_err *err)
{
    const struct params *p = s->params;
    const struct param *w = NULL, *b;
    tp_status st = need(&w, s, role, err);

    if (st)
        return st;
    *out = (struct linear){ .k = &s->net->k,
                            .weight = params_weight(p, w),
                            .grad = params_grad(p, w),
                            .out = width,
                            .in = in,
                            .in_out = family_of(s->net->model)->in_out && s->layer >= 0,
                            .parts = parts_of(s, w, role),
                            .shards = s->net->same_bits ? s->net->shards : 0,
                            .stride = stride_of(s, w),
                            .sums = s->net->sums,
                            .type = s->net->dtype,
                            .inner = role == ROLE_ROUTER ? DTYPE_F32 : s->net->inner,
                            .outer = s->net->outer,
                            .whole = s->net->whole,
                            .tp = is_cut(s, w) ? s->net->tp : NULL };
    b = bias == ROLE_NONE ? NULL : find(s, bias);
    if (b) {
        out->bias = params_weight(p, b);
        out->rounded_bias = params_rounded(p, b);
        out->bias_grad = params_grad(p, b);
        out->bias_stride = stride_of(s, b);
    }
    return TP_OK;
}

static tp_status bind_norm(struct network_norm *out, const struct source *s, enum tensor_role role,
                           enum tensor_role bias, struct tp_err *err)
{
    const struct params *p = s->params;
    const struct param *w = NULL, *b = bias == ROLE_NONE ? NULL : find(s, bias);
    tp_status st = need(&w, s, role, err);

    if (st)
        return st;
    *out = (struct network_norm){ .weight = params_weight(p, w),
                                  .grad = params_grad(p, w),
                                  .stride = stride_of(s, w) };
    if (b) {
        out->bias = params_weight(p, b);
        out->bias_grad = params_grad(p, b);
    }
    return TP_OK;
}

/* A linear layer of all experts. */
static tp_status bind_experts(struct linear *out, const struct source *s, enum tensor_role role,
                              int64_t width, int64_t in, struct tp_err *err)
{
    int first = params_find(s->params, s->layout, role, s->layer);
    tp_status st = bind_linear(out, s, role, ROLE_NONE, width, in, err);

    if (!st && s->net->experts / (s->net->ep ? comm_size(s->net->ep) : 1) > 1)
        out->stride = s->params->list[first + 1].at - s->params->list[first].at;
    return st;
}

/* The tensor, or the first one, that the MLP multiplies its input by. */
static enum tensor_role up_role(const struct family *f)
{
    if (family_tensor_find(f, ROLE_GATE_UP))
        return ROLE_GATE_UP;
    return family_is_gated(f) ? ROLE_GATE : ROLE_UP;
}

static tp_status bind_mlp(struct network_layer *y, const struct source *s, struct tp_err *err)
{
    const struct network *n = s->net;
    bool gated = family_is_gated(family_of(n->model));
    int64_t h = n->model->hidden;
    tp_status st;

    if (n->experts) {
        TP_TRY(bind_linear(&y->router, s, ROLE_ROUTER, ROLE_NONE, n->experts, h, err));
        TP_TRY(bind_experts(&y->gate, s, ROLE_EXPERT_GATE, n->ffn, h, err));
        TP_TRY(bind_experts(&y->up, s, ROLE_EXPERT_UP, n->ffn, h, err));
        TP_TRY(bind_experts(&y->down, s, ROLE_EXPERT_DOWN, h, n->ffn, err));
        return TP_OK;
    }
    TP_TRY(bind_linear(&y->up, s, up_role(family_of(n->model)),
                       gated ? ROLE_GATE_BIAS : ROLE_UP_BIAS, n->up_width, h, err));
    TP_TRY(bind_linear(&y->down, s, ROLE_DOWN, ROLE_DOWN_BIAS, h, n->ffn, err));
done:
    return st;
}

static tp_status bind_norms(struct network_layer *y, const struct source *s, struct tp_err *err)
{
    const struct family *f = family_of(s->net->model);
    tp_status st;

    st = TP_OK;
    if (family_tensor_find(f, ROLE_MLP_NORM)) {
        TP_TRY(bind_norm(&y->attn_norm, s, ROLE_ATTENTION_NORM, ROLE_ATTENTION_NORM_BIAS, err));
        TP_TRY(bind_norm(&y->mlp_norm, s, ROLE_MLP_NORM, ROLE_MLP_NORM_BIAS, err));
    }
    if (s->net->model->head_norms || s->net->norms_all_heads) {
        TP_TRY(bind_norm(&y->q_norm, s, ROLE_Q_NORM, ROLE_NONE, err));
        TP_TRY(bind_norm(&y->k_norm, s, ROLE_K_NORM, ROLE_NONE, err));
    }
    if (family_tensor_find(f, ROLE_MLP_POST_NORM)) {
        TP_TRY(bind_norm(&y->attn_post_norm, s, ROLE_ATTENTION_POST_NORM, ROLE_NONE, err));
        TP_TRY(bind_norm(&y->mlp_post_norm, s, ROLE_MLP_POST_NORM, ROLE_NONE, err));
    }
done:
    return st;
}

/* What the layer's attention sees, and where its positions are. */
static void bind_positions(struct network_layer *y, const struct network *n, int layer)
{
    bool is_local = family_layer_has_window(n->model, layer);

    int64_t window = n->model->sliding_window;

    y->window = is_local && window < n->tokens.seq ? window : 0;
    y->rope = is_local && n->local_rope ? n->local_rope : n->rope;
    if (!family_layer_has_rope(n->model, layer))
        y->rope = NULL;
}

static tp_status bind_layer(struct network_layer *y, const struct source *s, struct tp_err *err)
{
    const struct network *n = s->net;
    const struct family *family = family_of(n->model);
    bool fused = family_tensor_find(family, ROLE_QKV) != NULL;
    int64_t h = n->model->hidden;
    tp_status st;

    bind_positions(y, n, s->layer);
    TP_TRY(bind_norms(y, s, err));
    TP_TRY(bind_linear(&y->qkv, s, fused ? ROLE_QKV : ROLE_Q, fused ? ROLE_QKV_BIAS : ROLE_Q_BIAS,
                       n->qkv_width, h, err));
    TP_TRY(bind_linear(&y->out, s, ROLE_OUT, ROLE_OUT_BIAS, h, n->q_width, err));
    st = bind_mlp(y, s, err);
done:
    return st;
}

static tp_status bind_first(struct network *n, const struct source *s, struct tp_err *err)
{
    const struct params *p = s->params;
    const struct param *embed = NULL, *positions;
    tp_status st = need(&embed, s, ROLE_EMBEDDING, err);

    if (st)
        return st;
    n->embedding = params_weight(p, embed);
    n->embedding_grad = params_grad(p, embed);
    n->embedding_stride = stride_of(s, embed);
    n->embedding_tp = is_cut(s, embed) ? n->tp : NULL;
    positions = find(s, ROLE_POSITIONS);
    if (positions) {
        n->positions = params_weight(p, positions);
        n->positions_grad = params_grad(p, positions);
    }
    return TP_OK;
}

/* The range of the whole spans that has a rank's tensors of `layer`; copy: copies of another
 * stage's tensors. */
static struct pairwise_range range_of(const struct layout *l, const struct params *p, int layer,
                                      bool copy)
{
    struct pairwise_range r = { 0 };

    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i];

        if (l->tensors[q->tensor].layer != layer || q->copy != copy)
            continue;
        if (r.n == 0)
            r.at = q->at;
        r.n = q->at + q->n - r.at;
    }
    return r;
}

/* The ranges of gradients that become complete together; zero3 has units instead. */
static void bind_ranges(struct network *n, const struct layout *l, const struct params *p)
{
    n->pairwise = &p->pairwise;
    if (n->is_sharded)
        return;
    for (int i = 0; i < n->n_layers; i++)
        n->layers[i].grads = range_of(l, p, n->layer_numbers[i], false);
    n->before = range_of(l, p, LAYER_FIRST, false);
    n->after[0] = range_of(l, p, LAYER_LAST, false);
    n->after[1] = p->head.n ? p->head : range_of(l, p, LAYER_FIRST, true);
}

/* The gradient of a row layer's bias is the sum over rows of the gradient of the residual, which
 * the backward pass of the norm above has in registers: on a device that can, it sums them there.
 * --same-bits sums them block by block. */
static void join_bias(const struct network *n, struct network_norm *above, struct linear *below)
{
    if (!n->k.ops->keeps_bf16 || n->same_bits || !above->bias || !below->bias)
        return;
    above->row_bias_grad = below->bias_grad;
    below->bias_by_norm = true;
}

/* Which norms sum the gradients of biases: not of the last layer of a virtual stage, unless the
 * model ends there, because the norm above is another stage's. Not the MLP's norm where it does not
 * read what attention adds. With zero3 only in the same layer: gradients of another layer are not
 * in memory yet. */
static void join_biases(struct network *n)
{
    for (int c = 0; c < n->n_vstages; c++) {
        const struct network_vstage *v = &n->vstages[c];
        bool is_last = n->is_last && c == n->n_vstages - 1;

        for (int i = 0; i < v->n; i++) {
            struct network_layer *y = &n->layers[v->first + i];
            struct network_norm *above = i + 1 < v->n ? &y[1].attn_norm
                                         : is_last    ? &n->final_norm
                                                      : NULL;

            if (!y->attn_post_norm.weight && !n->is_parallel)
                join_bias(n, &y->mlp_norm, &y->out);
            if (above && !n->is_sharded && !y->mlp_post_norm.weight)
                join_bias(n, above, &y->down);
        }
    }
}

static tp_status fill_tables(const struct network *n, struct tp_err *err)
{
    struct rotary_table t = {
        .cos_sin = n->rope, .model = n->model, .tokens = &n->tokens, .n = n->seq
    };
    tp_status st = n->rope ? rotary_table_fill(&t, &n->k, err) : TP_OK;

    t.cos_sin = n->local_rope;
    t.is_local = true;
    return st || !n->local_rope ? st : rotary_table_fill(&t, &n->k, err);
}

tp_status network_bind(struct network *n, const struct layout *l, const struct params *p,
                       const struct activations_scratch *w, const struct process_groups *groups,
                       struct tp_err *err)
{
    const struct model *m = n->model;
    const struct source first = { n, l, p, LAYER_FIRST }, last = { n, l, p, LAYER_LAST };
    tp_status st = TP_OK;

    n->tp = groups->tp;
    n->ep = groups->ep;
    n->ring = (struct ring_group){ .k = &n->k,
                                   .cp = groups->cp,
                                   .q_width = n->q_width,
                                   .kv_width = n->kv_width,
                                   .qkv_width = n->qkv_width };
    n->whole = w->whole;
    n->sums = w->sums;
    n->rope = w->rope;
    n->local_rope = w->local_rope;
    for (int i = 0; i < n->n_layers; i++) {
        const struct source s = { n, l, p, n->layer_numbers[i] };

        TP_TRY(bind_layer(&n->layers[i], &s, err));
    }
    if (n->is_first)
        TP_TRY(bind_first(n, &first, err));
    if (n->is_last) {
        TP_TRY(bind_norm(&n->final_norm, &last, ROLE_FINAL_NORM, ROLE_FINAL_NORM_BIAS, err));
        TP_TRY(bind_linear(&n->head, m->tied ? &first : &last, m->tied ? ROLE_EMBEDDING : ROLE_HEAD,
                           ROLE_NONE, n->logit.per_shard, m->hidden, err));
        n->head.all_out = n->logit.total;
        n->head.divisor = (float)or_one(m->logits_scaling);
        if (p->head.n && !p->sharded)
            n->head.grad = p->grad + p->head.at;
    }
    join_biases(n);
    bind_ranges(n, l, p);
    st = fill_tables(n, err);
done:
    return st;
}
