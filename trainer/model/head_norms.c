/* trainer/model/head_norms.c - see trainer/model/head_norms.h. */
#include "trainer/model/head_norms.h"

#include "trainer/model/residual.h"

/* The queries, or the keys, of a layer. With a norm of all heads they are one wide head. */
struct head_part {
    const struct network_norm *norm;
    int64_t heads, head_dim; /* of a row */
    int64_t column, first;   /* the elements and heads of a row that the other part has before it */
};

static struct head_part part_of(const struct network *n, const struct network_layer *y, bool keys)
{
    int64_t head_dim = n->model->head_dim;

    if (n->norms_all_heads)
        return keys ? (struct head_part){ &y->k_norm, 1, n->kv_width, n->q_width, 1 }
                    : (struct head_part){ &y->q_norm, 1, n->q_width, 0, 0 };
    return keys ? (struct head_part){ &y->k_norm, n->kv_heads, head_dim, n->q_width, n->heads }
                : (struct head_part){ &y->q_norm, n->heads, head_dim, 0, 0 };
}

/* Rows of qkv: one for each token and shard. */
static int64_t parts_of(const struct pass *p)
{
    return p->rows * p->net->shards;
}

/* One call norms the rows of all shards, which have the same weight, or those of a shard. */
static int calls_of(const struct network *n)
{
    return n->norms_all_heads ? n->shards : 1;
}

static int64_t rows_of(const struct pass *p)
{
    return p->net->norms_all_heads ? p->rows : parts_of(p);
}

/* Where the part h of the rows of a call begins: in qkv or its gradient, in s->heads, and in
 * s->head_stats. */
static void *in_qkv(const struct pass *p, const struct head_part *h, void *qkv, int call)
{
    const struct network *n = p->net;

    return (char *)qkv + (call * p->rows * n->qkv_width + h->column) * dtype_bytes(n->inner);
}

static const void *in_heads(const struct pass *p, const struct head_part *h,
                            const struct activations_layer *s, int call)
{
    const struct network *n = p->net;
    int64_t at = call * p->rows * (n->q_width + n->kv_width) + h->column;

    return (const char *)s->heads + at * dtype_bytes(n->inner);
}

static float *in_stats(const struct pass *p, const struct head_part *h,
                       const struct activations_layer *s, int call)
{
    return s->head_stats + h->first * parts_of(p) + call * p->rows;
}

static const float *weight_of(const struct pass *p, const struct head_part *h, int call)
{
    if (p->net->norms_all_heads)
        return h->norm->weight + call * h->norm->stride;
    return residual_norm_weight(p, h->norm, h->head_dim);
}

/* Keep the queries and keys of qkv as s->heads. */
static void keep_heads(const struct pass *p, const struct activations_layer *s, const void *qkv)
{
    const struct network *n = p->net;
    int64_t e = dtype_bytes(n->inner), width = (n->q_width + n->kv_width) * e;
    const struct device_copy copy = { s->heads, qkv, parts_of(p), width, width, n->qkv_width * e };

    device_copy_2d(n->k.queue, &copy);
}

/* ---- sums over what has parts of a norm of all heads ---- */

/* The columns that the sums of a part are of. */
static float columns_of(const struct network *n, const struct head_part *h)
{
    return (float)(n->n_virtual * h->head_dim);
}

/* scratch.norm_sums gets the sums of s->heads, or with d those of its gradients. Returns it; NULL:
 * no norm is cut. */
static const float *add_up(const struct pass *p, const struct network_layer *y,
                           const struct activations_layer *s, void *d)
{
    const struct network *n = p->net;
    int64_t count = 2 * p->rows;
    float *sums = p->scratch->norm_sums, *parts = n->shards > 1 ? p->scratch->norm_parts : sums;

    if (!n->norms_all_heads || n->n_virtual == 1)
        return NULL;
    for (int call = 0; call < n->shards; call++)
        for (int keys = 0; keys < 2; keys++) {
            struct head_part h = part_of(n, y, keys);

            n->k.ops->head_norm_sums(
                n->k.queue, &(struct head_norm_sums){ .out = parts + (2 * call + keys) * p->rows,
                                                      .x = in_heads(p, &h, s, call),
                                                      .d = d ? in_qkv(p, &h, d, call) : NULL,
                                                      .ldx = n->q_width + n->kv_width,
                                                      .ldd = n->qkv_width,
                                                      .type = n->inner,
                                                      .w = weight_of(p, &h, call),
                                                      .rows = p->rows,
                                                      .heads = h.heads,
                                                      .head_dim = h.head_dim });
        }
    if (n->shards > 1)
        n->k.ops->sum_tree(n->k.queue, &(struct sum_tree){ sums, parts, n->shards, count, count });
    if (comm_size(n->tp) > 1)
        comm_all_reduce(n->tp, n->k.queue, sums, count, DTYPE_F32, COMM_SUM);
    return sums;
}

/* ---- forward ---- */

static void norm_part(const struct pass *p, const struct head_part *h,
                      const struct activations_layer *s, void *qkv, const float *sums)
{
    const struct network *n = p->net;

    for (int call = 0; call < calls_of(n); call++)
        n->k.ops->head_norm_forward(n->k.queue,
                                    &(struct head_norm_forward){ .y = in_qkv(p, h, qkv, call),
                                                                 .x = in_heads(p, h, s, call),
                                                                 .ldy = n->qkv_width,
                                                                 .ldx = n->q_width + n->kv_width,
                                                                 .type = n->inner,
                                                                 .rstd = in_stats(p, h, s, call),
                                                                 .w = weight_of(p, h, call),
                                                                 .rows = rows_of(p),
                                                                 .heads = h->heads,
                                                                 .head_dim = h->head_dim,
                                                                 .eps = (float)n->model->norm_eps,
                                                                 .sums = sums,
                                                                 .columns = columns_of(n, h) });
}

void head_norms_forward(const struct pass *p, const struct network_layer *y,
                        const struct activations_layer *s, void *qkv)
{
    const float *sums;

    keep_heads(p, s, qkv);
    sums = add_up(p, y, s, NULL);
    for (int keys = 0; keys < 2; keys++) {
        struct head_part h = part_of(p->net, y, keys);

        norm_part(p, &h, s, qkv, sums ? sums + keys * p->rows : NULL);
    }
}

/* ---- backward ---- */

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

/* --same-bits: where the gradients of the weight of part h go first. Those of a norm of all heads
 * are a shard's own, and are added at once. */
static float *blocks_of(const struct pass *p, const struct head_part *h)
{
    return p->scratch->blocks + (p->net->norms_all_heads || h->first == 0 ? 0 : h->head_dim);
}

static void norm_part_backward(const struct pass *p, const struct head_part *h,
                               const struct activations_layer *s, void *dqkv, const float *sums)
{
    const struct network *n = p->net;

    for (int call = 0; call < calls_of(n); call++) {
        float *grad = h->norm->grad + call * h->norm->stride, *blocks = blocks_of(p, h);

        n->k.ops->head_norm_backward(
            n->k.queue,
            &(struct head_norm_backward){ .d = in_qkv(p, h, dqkv, call),
                                          .x = in_heads(p, h, s, call),
                                          .ldd = n->qkv_width,
                                          .ldx = n->q_width + n->kv_width,
                                          .type = n->inner,
                                          .rstd = in_stats(p, h, s, call),
                                          .w = weight_of(p, h, call),
                                          .dw = n->same_bits ? blocks : grad,
                                          .rows = rows_of(p),
                                          .heads = h->heads,
                                          .head_dim = h->head_dim,
                                          .blocks = n->same_bits ? n->shards / calls_of(n) : 0,
                                          .block_step = 2 * h->head_dim,
                                          .sums = sums,
                                          .columns = columns_of(n, h) });
        if (n->same_bits && n->norms_all_heads)
            n->k.ops->sum_add(n->k.queue, &(struct sum_add){ grad, blocks, 1, h->head_dim, 0, 0 });
    }
}

void head_norms_backward(const struct pass *p, const struct network_layer *y,
                         const struct activations_layer *s, void *dqkv)
{
    const struct network *n = p->net;
    const float *sums = add_up(p, y, s, dqkv);

    for (int keys = 0; keys < 2; keys++) {
        struct head_part h = part_of(n, y, keys);

        norm_part_backward(p, &h, s, dqkv, sums ? sums + keys * p->rows : NULL);
    }
    if (n->same_bits && !n->norms_all_heads)
        add_shards(p, y);
}
