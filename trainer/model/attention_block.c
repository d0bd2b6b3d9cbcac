/* trainer/model/attention_block.c - see trainer/model/attention_block.h. */
#include "trainer/model/attention_block.h"

#include "trainer/context/ring_attention.h"
#include "trainer/model/head_norms.h"
#include "trainer/model/mlp_block.h"

#include <math.h>

/* What products of queries and keys are multiplied by. */
static double score_factor(const struct model *m)
{
    double scalar = m->attention_scalar > 0 ? m->attention_scalar : (double)m->head_dim;

    return m->attention_multiplier > 0 ? m->attention_multiplier : 1 / sqrt(scalar);
}

/* The kernel's view of a slot: each row has q, k and v side by side. */
static struct attention view(const struct pass *p, const struct network_layer *y,
                             const struct activations_layer *s)
{
    const struct network *n = p->net;
    const struct model *m = n->model;
    int64_t e = dtype_bytes(n->dtype);
    const char *qkv = s->qkv;

    return (struct attention){ .batch = p->sequences * n->shards,
                               .one_thread_each = n->same_bits,
                               .seq = n->seq,
                               .heads = n->heads,
                               .kv_heads = n->kv_heads,
                               .head_dim = m->head_dim,
                               .type = n->dtype,
                               .q = qkv,
                               .k = qkv + n->q_width * e,
                               .v = qkv + (n->q_width + n->kv_width) * e,
                               .ldq = n->qkv_width,
                               .ldk = n->qkv_width,
                               .ldv = n->qkv_width,
                               .out = s->attended,
                               .ldo = n->q_width,
                               .lse = s->lse,
                               .window = y->window,
                               .scale = (float)score_factor(m),
                               .cap = (float)m->attention_cap };
}

/* q and k are side by side, so one call rotates the heads of both. */
static void rotate(const struct network *n, const struct network_layer *y, void *qkv,
                   enum dtype type, int64_t rows, int sign)
{
    const struct rope_apply a = { .x = qkv,
                                  .cos_sin = y->rope,
                                  .rows = rows * n->shards,
                                  .n_positions = n->seq,
                                  .heads = n->heads + n->kv_heads,
                                  .head_dim = n->model->head_dim,
                                  .rotary_dim = n->model->rotary_dim,
                                  .stride = n->qkv_width,
                                  .sign = sign,
                                  .type = type };

    n->k.ops->rope_apply(n->k.queue, &a);
}

/* Rows of qkv: one for each token and shard. */
static int64_t parts_of(const struct pass *p)
{
    return p->rows * p->net->shards;
}

/* Whether query, key and value of each head are copied to all queries, all keys and all values, or
 * back. */
enum regroup { REGROUP_BY_PART, REGROUP_BY_HEAD };

/* Both have rows of inner: `by_head` [heads][3][head_dim], `by_part` [3][heads][head_dim]. */
static void regroup(const struct pass *p, enum regroup to, char *by_head, char *by_part)
{
    const struct network *n = p->net;
    const int64_t d = n->model->head_dim, rows = parts_of(p), e = dtype_bytes(n->inner);
    const struct box head_box = { 3, { 0 }, { rows, n->heads, 3 * d } },
                     part_box = { 3, { 0 }, { rows, 3 * n->heads, d } };
    struct copy_box copy = { .region = { 3, { 0 }, { rows, n->heads, d } }, .elem_bytes = (int)e };

    for (int64_t part = 0; part < 3; part++) {
        char *in_heads = by_head + part * d * e, *in_parts = by_part + part * n->heads * d * e;

        copy.dst = to == REGROUP_BY_PART ? in_parts : in_heads;
        copy.dst_box = to == REGROUP_BY_PART ? part_box : head_box;
        copy.src = to == REGROUP_BY_PART ? in_heads : in_parts;
        copy.src_box = to == REGROUP_BY_PART ? head_box : part_box;
        n->k.ops->copy_box(n->k.queue, &copy);
    }
}

/* All queries, all keys and all values of a row side by side. */
static void qkv_forward(const struct pass *p, const struct network_layer *y, void *qkv,
                        const void *x)
{
    void *by_head = p->scratch->ffn_scratch;

    if (!p->net->has_qkv_by_head) {
        linear_column_forward(&y->qkv, qkv, x, p->rows);
        return;
    }
    linear_column_forward(&y->qkv, by_head, x, p->rows);
    regroup(p, REGROUP_BY_PART, by_head, qkv);
}

/* The gradient of what the product computes, inner, from that of its parts. */
static void *qkv_gradient(const struct pass *p)
{
    struct activations_scratch *w = p->scratch;

    if (!p->net->has_qkv_by_head)
        return w->dqkv;
    regroup(p, REGROUP_BY_HEAD, (char *)w->ffn_scratch, w->dqkv);
    return w->ffn_scratch;
}

static void round_bf16(const struct network *n, void *to, const float *from, int64_t count)
{
    n->k.ops->cast(n->k.queue, &(struct cast){ to, DTYPE_BF16, from, DTYPE_F32, count });
}

/* Compute s->attended and s->lse from s->qkv. */
static void attend(const struct pass *p, const struct network_layer *y,
                   const struct activations_layer *s)
{
    struct activations_scratch *w = p->scratch;
    struct attention a = view(p, y, s);

    ring_attention_forward(&p->net->ring, &w->ring, &a, w->ffn_scratch);
}

void attention_block_forward(const struct pass *p, const struct network_layer *y,
                             struct activations_layer *s, const struct residual_pending *in)
{
    const struct network *n = p->net;
    bool is_wider = n->inner != n->dtype; /* than what attention reads */
    void *qkv = is_wider ? p->scratch->dqkv : s->qkv;
    void *block = residual_block_place(p, s->mid);

    residual_norm(p, &y->attn_norm, s->normed, s->stats, s->x, in);
    qkv_forward(p, y, qkv, s->normed);
    if (y->q_norm.weight)
        head_norms_forward(p, y, s, qkv);
    if (y->rope)
        rotate(n, y, qkv, n->inner, p->rows, +1);
    if (is_wider)
        round_bf16(n, s->qkv, qkv, parts_of(p) * n->qkv_width);
    attend(p, y, s);
    linear_row_forward(&y->out, y->attn_post_norm.weight ? s->attn_out : block, s->attended,
                       p->rows);
    if (y->attn_post_norm.weight)
        residual_post_norm(p, &y->attn_post_norm, block, s->attn_out_stats, s->attn_out,
                           y->out.bias);
}

void attention_block_backward(const struct pass *p, const struct network_layer *y,
                              struct activations_layer *s)
{
    const struct network *n = p->net;
    struct activations_scratch *w = p->scratch;
    bool is_wider = n->inner != n->dtype;
    struct attention a = view(p, y, s);
    const float *dout =
        residual_post_norm_backward(p, &y->attn_post_norm, s->attn_out, s->attn_out_stats);
    const void *dy = residual_block_gradient(p, dout), *d_attended = w->ffn_scratch, *dqkv;
    int64_t parts = parts_of(p);
    const struct ring_gradients to = { w->dqkv, n->inner,
                                       n->inner == DTYPE_F32 ? w->dqkv : w->dqkv_sums };

    if (n->recompute == RECOMPUTE_SELECTIVE)
        attend(p, y, s);
    residual_bias_backward(p, &y->out, dout);
    linear_row_backward(&y->out, w->ffn_scratch, dy, s->attended, p->rows, p->add);
    if (n->is_parallel) /* now the gradient of the residual above the layer is read no more */
        mlp_block_norm_backward(p, y, s);
    if (is_wider) {
        round_bf16(n, w->bf16_scratch, w->ffn_scratch, parts * n->q_width);
        d_attended = w->bf16_scratch;
    }
    ring_attention_backward(&n->ring, &w->ring, &a, d_attended, &to);
    if (y->rope)
        rotate(n, y, w->dqkv, n->inner, p->rows, -1);
    if (y->q_norm.weight)
        head_norms_backward(p, y, s, w->dqkv);
    dqkv = qkv_gradient(p);
    if (is_wider) {
        round_bf16(n, w->bf16_scratch, dqkv, parts * n->qkv_width);
        dqkv = w->bf16_scratch;
    }
    linear_bias_backward(&y->qkv, dqkv, p->rows);
    linear_column_backward(&y->qkv, w->outer, dqkv, s->normed, p->rows, p->add);
    residual_norm_backward(p, &y->attn_norm, s->x, s->stats);
}
