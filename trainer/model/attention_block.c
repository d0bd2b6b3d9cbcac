/* trainer/model/attention_block.c - see trainer/model/attention_block.h. */
#include "trainer/model/attention_block.h"

#include "trainer/context/ring_attention.h"

#include <math.h>

/* The kernel's view of a slot: each row has q, k and v side by side. */
static struct attention view(const struct network *n, int64_t sequences,
                             const struct activations_layer *s)
{
    int64_t e = dtype_bytes(n->dtype);
    const char *qkv = s->qkv;

    return (struct attention){ .batch = sequences * n->shards,
                               .one_thread_each = n->same_bits,
                               .seq = n->seq,
                               .heads = n->heads,
                               .kv_heads = n->kv_heads,
                               .head_dim = n->model->head_dim,
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
                               .scale = (float)(1 / sqrt((double)n->model->head_dim)) };
}

/* q and k are side by side, so one call rotates the heads of both. */
static void rotate(const struct network *n, float *qkv, int64_t rows, int sign)
{
    const struct rope_apply a = { .x = qkv,
                                  .cos_sin = n->rope,
                                  .rows = rows * n->shards,
                                  .n_positions = n->seq,
                                  .heads = n->heads + n->kv_heads,
                                  .head_dim = n->model->head_dim,
                                  .stride = n->qkv_width,
                                  .sign = sign };

    n->k.ops->rope_apply(n->k.queue, &a);
}

static void round_bf16(const struct network *n, void *to, const float *from, int64_t count)
{
    n->k.ops->cast(n->k.queue, &(struct cast){ to, DTYPE_BF16, from, DTYPE_F32, count });
}

/* Compute s->attended and s->lse from s->qkv. */
static void attend(const struct pass *p, const struct activations_layer *s)
{
    struct activations_scratch *w = p->scratch;
    struct attention a = view(p->net, p->sequences, s);

    ring_attention_forward(&p->net->ring, &w->ring, &a, w->ffn_scratch);
}

void attention_block_forward(const struct pass *p, const struct network_layer *y,
                             struct activations_layer *s, const struct residual_pending *in)
{
    const struct network *n = p->net;
    bool is_bf16 = n->dtype == DTYPE_BF16;
    float *qkv = is_bf16 ? p->scratch->dqkv : s->qkv;

    residual_norm(p, &y->attn_norm, s->normed, s->stats, s->x, in);
    linear_column_forward(&y->qkv, qkv, s->normed, p->rows);
    linear_bias_add(&y->qkv, qkv, p->rows);
    if (n->rope)
        rotate(n, qkv, p->rows, +1);
    if (is_bf16)
        round_bf16(n, s->qkv, qkv, p->rows * n->shards * n->qkv_width);
    attend(p, s);
    linear_row_forward(&y->out, s->mid, s->attended, p->rows);
}

void attention_block_backward(const struct pass *p, const struct network_layer *y,
                              struct activations_layer *s)
{
    const struct network *n = p->net;
    struct activations_scratch *w = p->scratch;
    bool is_bf16 = n->dtype == DTYPE_BF16;
    struct attention a = view(n, p->sequences, s);
    const void *dy = w->dx, *d_attended = w->ffn_scratch, *dqkv = w->dqkv;
    int64_t parts = p->rows * n->shards;

    if (n->recompute == RECOMPUTE_SELECTIVE)
        attend(p, s);
    if (is_bf16) {
        round_bf16(n, w->dy, w->dx, p->residual_rows * n->model->hidden);
        dy = w->dy;
    }
    residual_bias_backward(p, &y->out, w->dx);
    linear_row_backward(&y->out, w->ffn_scratch, dy, s->attended, p->rows, p->add);
    if (is_bf16) {
        round_bf16(n, w->bf16_scratch, w->ffn_scratch, parts * n->q_width);
        d_attended = w->bf16_scratch;
    }
    ring_attention_backward(&n->ring, &w->ring, &a, d_attended, w->dqkv);
    if (n->rope)
        rotate(n, w->dqkv, p->rows, -1);
    if (is_bf16) {
        round_bf16(n, w->bf16_scratch, w->dqkv, parts * n->qkv_width);
        dqkv = w->bf16_scratch;
    }
    linear_bias_backward(&y->qkv, dqkv, p->rows);
    linear_column_backward(&y->qkv, w->dnormed, dqkv, s->normed, p->rows, p->add);
    residual_norm_backward(p, &y->attn_norm, w->dx, w->dnormed, s->x, s->stats);
}
