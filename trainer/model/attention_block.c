/* trainer/model/attention_block.c - see trainer/model/attention_block.h. */
#include "trainer/model/attention_block.h"

#include "trainer/context/ring_attention.h"

#include <math.h>

/* The kernel's view of a slot: each row has q, k and v side by side. */
static struct attention view(const struct pass *p, const struct network_layer *y,
                             const struct activations_layer *s)
{
    const struct network *n = p->net;
    const struct model *m = n->model;
    int64_t e = dtype_bytes(n->dtype);
    double scalar = m->attention_scalar > 0 ? m->attention_scalar : (double)m->head_dim;
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
                               .scale = (float)(1 / sqrt(scalar)),
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
                                  .stride = n->qkv_width,
                                  .sign = sign,
                                  .type = type };

    n->k.ops->rope_apply(n->k.queue, &a);
}

/* ---- norms of each head's queries and keys ----
 *
 * Queries and keys lie side by side in a row of qkv, but the norm takes dense rows, so both are
 * copied out and back. */

/* The queries, or the keys, of a layer. */
struct head_part {
    const struct network_norm *norm;
    int64_t column, width, heads; /* in a row of qkv */
    int64_t before, heads_before; /* elements and heads of each row that the other part has first */
};

static struct head_part part_of(const struct network *n, const struct network_layer *y, bool keys)
{
    if (keys)
        return (struct head_part){ &y->k_norm,  n->q_width, n->kv_width,
                                   n->kv_heads, n->q_width, n->heads };
    return (struct head_part){ &y->q_norm, 0, n->q_width, n->heads, 0, 0 };
}

/* Rows of qkv: one for each token and shard. */
static int64_t parts_of(const struct pass *p)
{
    return p->rows * p->net->shards;
}

/* Copy a part of `rows` rows between qkv and dense rows. */
static void copy_heads(const struct network *n, float *to, const float *from, int64_t rows,
                       const struct head_part *h, bool is_back)
{
    int64_t dense = h->width * (int64_t)sizeof(float);
    int64_t stride = n->qkv_width * (int64_t)sizeof(float);
    const struct device_copy copy = {
        to, from, rows, dense, is_back ? stride : dense, is_back ? dense : stride
    };

    device_copy_2d(n->k.queue, &copy);
}

static void norm_heads(const struct pass *p, const struct network_layer *y,
                       const struct activations_layer *s, float *qkv)
{
    const struct network *n = p->net;
    int64_t rows = parts_of(p);

    for (int keys = 0; keys < 2; keys++) {
        struct head_part h = part_of(n, y, keys);
        float *x = s->heads + h.before * rows, *normed = p->scratch->head_normed;

        copy_heads(n, x, qkv + h.column, rows, &h, false);
        n->k.ops->rms_norm_forward(
            n->k.queue,
            &(struct rms_norm_forward){ .y = normed,
                                        .type = DTYPE_F32,
                                        .rstd = s->head_stats + h.heads_before * rows,
                                        .x = x,
                                        .w = residual_norm_weight(p, h.norm, n->model->head_dim),
                                        .rows = rows * h.heads,
                                        .cols = n->model->head_dim,
                                        .eps = (float)n->model->norm_eps });
        copy_heads(n, qkv + h.column, normed, rows, &h, true);
    }
}

/* --same-bits: add the shards' gradients of both weights, [shards][2][head_dim], along the tree. */
static void add_shards(const struct pass *p, const struct network_layer *y)
{
    const struct network *n = p->net;
    int64_t width = n->model->head_dim;
    float *sum = p->scratch->blocks;

    n->k.ops->sum_tree(n->k.queue, &(struct sum_tree){ sum, sum, n->shards, 2 * width, 2 * width });
    if (comm_size(n->tp) > 1)
        comm_all_reduce(n->tp, n->k.queue, sum, 2 * width, DTYPE_F32, COMM_SUM);
    n->k.ops->sum_add(n->k.queue, &(struct sum_add){ y->q_norm.grad, sum, 1, width, 0, 0 });
    n->k.ops->sum_add(n->k.queue, &(struct sum_add){ y->k_norm.grad, sum + width, 1, width, 0, 0 });
}

static void norm_heads_backward(const struct pass *p, const struct network_layer *y,
                                const struct activations_layer *s, float *dqkv)
{
    const struct network *n = p->net;
    int64_t rows = parts_of(p), width = n->model->head_dim;

    for (int keys = 0; keys < 2; keys++) {
        struct head_part h = part_of(n, y, keys);
        float *dy = p->scratch->head_normed, *dx = p->scratch->dheads;

        copy_heads(n, dy, dqkv + h.column, rows, &h, false);
        device_fill(n->k.queue, dx, 0, rows * h.width * (int64_t)sizeof(float));
        n->k.ops->rms_norm_backward(
            n->k.queue, &(struct rms_norm_backward){
                            .dx = dx,
                            .dw = n->same_bits ? p->scratch->blocks + keys * width : h.norm->grad,
                            .dy = dy,
                            .x = s->heads + h.before * rows,
                            .rstd = s->head_stats + h.heads_before * rows,
                            .w = residual_norm_weight(p, h.norm, width),
                            .rows = rows * h.heads,
                            .cols = width,
                            .blocks = n->same_bits ? n->shards : 0,
                            .block_step = 2 * width });
        copy_heads(n, dqkv + h.column, dx, rows, &h, true);
    }
    if (n->same_bits)
        add_shards(p, y);
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
    bool is_wider = y->qkv.inner != n->dtype; /* than what attention reads */
    void *qkv = is_wider ? p->scratch->dqkv : s->qkv;
    void *block = residual_block_place(p, s->mid);

    residual_norm(p, &y->attn_norm, s->normed, s->stats, s->x, in);
    linear_column_forward(&y->qkv, qkv, s->normed, p->rows);
    if (y->q_norm.weight)
        norm_heads(p, y, s, qkv);
    if (y->rope)
        rotate(n, y, qkv, y->qkv.inner, p->rows, +1);
    if (is_wider)
        round_bf16(n, s->qkv, qkv, p->rows * n->shards * n->qkv_width);
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
    bool is_bf16 = n->dtype == DTYPE_BF16;
    struct attention a = view(p, y, s);
    const float *dout =
        residual_post_norm_backward(p, &y->attn_post_norm, s->attn_out, s->attn_out_stats);
    const void *dy = residual_block_gradient(p, dout), *d_attended = w->ffn_scratch,
               *dqkv = w->dqkv;
    int64_t parts = p->rows * n->shards;

    if (n->recompute == RECOMPUTE_SELECTIVE)
        attend(p, y, s);
    residual_bias_backward(p, &y->out, dout);
    linear_row_backward(&y->out, w->ffn_scratch, dy, s->attended, p->rows, p->add);
    if (y->out.inner != n->dtype) {
        round_bf16(n, w->bf16_scratch, w->ffn_scratch, parts * n->q_width);
        d_attended = w->bf16_scratch;
    }
    ring_attention_backward(&n->ring, &w->ring, &a, d_attended, w->dqkv);
    if (y->rope)
        rotate(n, y, w->dqkv, DTYPE_F32, p->rows, -1);
    if (y->q_norm.weight)
        norm_heads_backward(p, y, s, w->dqkv);
    if (is_bf16) {
        round_bf16(n, w->bf16_scratch, w->dqkv, parts * n->qkv_width);
        dqkv = w->bf16_scratch;
    }
    linear_bias_backward(&y->qkv, dqkv, p->rows);
    linear_column_backward(&y->qkv, w->outer, dqkv, s->normed, p->rows, p->add);
    residual_norm_backward(p, &y->attn_norm, s->x, s->stats);
}
