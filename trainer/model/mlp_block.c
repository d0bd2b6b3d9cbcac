/* trainer/model/mlp_block.c - see trainer/model/mlp_block.h. */
#include "trainer/model/mlp_block.h"

#include "layout/family.h"
#include "trainer/model/experts.h"
#include "trainer/model/residual.h"

static bool is_gated(const struct network *n)
{
    enum family_mlp mlp = family_of(n->model)->mlp;

    return mlp == FAMILY_SWIGLU || mlp == FAMILY_GEGLU;
}

static enum gated_kind gated_kind_of(const struct network *n)
{
    return family_of(n->model)->mlp == FAMILY_GEGLU ? GATED_GEGLU : GATED_SWIGLU;
}

static enum activation_kind activation_kind_of(const struct network *n)
{
    if (family_of(n->model)->mlp == FAMILY_RELU)
        return ACTIVATION_RELU;
    return n->model->exact_gelu ? ACTIVATION_GELU_ERF : ACTIVATION_GELU_TANH;
}

/* Whether the products around GELU compute it and its gradient: that with tanh. */
static bool is_gelu_fused(const struct network *n)
{
    return !is_gated(n) && activation_kind_of(n) == ACTIVATION_GELU_TANH && n->inner == DTYPE_BF16;
}

/* The first row of `up` in rows that have gate and up side by side. */
static void *after_gate(const struct network *n, void *rows, enum dtype type)
{
    return (char *)rows + n->ffn * dtype_bytes(type);
}

static int64_t rows_of(const struct pass *p)
{
    return p->rows * p->net->shards * p->net->token_copies;
}

static void activate(const struct pass *p, struct activations_layer *s)
{
    const struct network *n = p->net;
    int64_t rows = rows_of(p);

    if (!is_gated(n))
        n->k.ops->activation_forward(n->k.queue,
                                     &(struct activation_forward){ .y = s->hidden,
                                                                   .type = n->dtype,
                                                                   .u = s->up,
                                                                   .n = rows * n->ffn,
                                                                   .in_type = n->inner,
                                                                   .kind = activation_kind_of(n) });
    else
        n->k.ops->gated_forward(n->k.queue,
                                &(struct gated_forward){ .kind = gated_kind_of(n),
                                                         .type = n->dtype,
                                                         .y = s->hidden,
                                                         .gate = s->up,
                                                         .up = after_gate(n, s->up, n->inner),
                                                         .ld = 2 * n->ffn,
                                                         .rows = rows,
                                                         .cols = n->ffn,
                                                         .count = experts_count(p, s),
                                                         .in_type = n->inner });
}

/* dup: the gradient of s->up, of the run's dtype; may be s->up itself if that has this type too. */
static void activate_backward(const struct pass *p, void *dup, const void *dy,
                              const struct activations_layer *s)
{
    const struct network *n = p->net;
    int64_t rows = rows_of(p);

    if (!is_gated(n))
        n->k.ops->activation_backward(
            n->k.queue, &(struct activation_backward){ .du = dup,
                                                       .type = n->dtype,
                                                       .dy = dy,
                                                       .u = s->up,
                                                       .n = rows * n->ffn,
                                                       .in_type = n->inner,
                                                       .kind = activation_kind_of(n) });
    else
        n->k.ops->gated_backward(n->k.queue,
                                 &(struct gated_backward){ .kind = gated_kind_of(n),
                                                           .type = n->dtype,
                                                           .dgate = dup,
                                                           .dup = after_gate(n, dup, n->dtype),
                                                           .dy = dy,
                                                           .gate = s->up,
                                                           .up = after_gate(n, s->up, n->inner),
                                                           .ld = 2 * n->ffn,
                                                           .rows = rows,
                                                           .cols = n->ffn,
                                                           .count = experts_count(p, s),
                                                           .in_type = n->inner });
}

/* s->mid becomes the residual that the MLP adds to, and s->mid_normed what it reads. */
static void norm_forward(const struct pass *p, const struct network_layer *y,
                         struct activations_layer *s, bool needs_residual)
{
    const struct residual_pending none = { 0 },
                                  in = { .residual = s->x,
                                         .bias = y->attn_post_norm.weight ? NULL : y->out.bias,
                                         .block = residual_block(p) };

    if (!p->net->is_parallel) {
        residual_norm(p, &y->mlp_norm, s->mid_normed, s->mid_stats, s->mid, &in);
        return;
    }
    if (needs_residual)
        residual_finish(p, s->mid, &in);
    residual_norm(p, &y->mlp_norm, s->mid_normed, s->mid_stats, s->x, &none);
}

void mlp_block_norm_backward(const struct pass *p, const struct network_layer *y,
                             const struct activations_layer *s)
{
    residual_norm_backward(p, &y->mlp_norm, p->net->is_parallel ? s->x : s->mid, s->mid_stats);
}

void mlp_block_forward(const struct pass *p, const struct network_layer *y,
                       struct activations_layer *s, float *out)
{
    void *block = out ? residual_block_place(p, out) : NULL;

    norm_forward(p, y, s, block != NULL);
    if (p->net->experts)
        experts_up_forward(p, y, s);
    else if (is_gelu_fused(p->net))
        linear_column_gelu_forward(&y->up, s->hidden, s->up, s->mid_normed, p->rows);
    else
        linear_column_forward(&y->up, s->up, s->mid_normed, p->rows);
    if (!is_gelu_fused(p->net))
        activate(p, s);
    if (y->mlp_post_norm.weight) {
        linear_row_forward(&y->down, s->mlp_out, s->hidden, p->rows);
        residual_post_norm(p, &y->mlp_post_norm, block ? block : p->scratch->outer,
                           s->mlp_out_stats, s->mlp_out, y->down.bias);
    } else if (block && p->net->experts)
        experts_down_forward(p, y, s, block);
    else if (block)
        linear_row_forward(&y->down, block, s->hidden, p->rows);
}

struct residual_pending mlp_block_pending(const struct pass *p, const struct network_layer *y,
                                          const struct activations_layer *s)
{
    return (struct residual_pending){ .residual = s->mid,
                                      .bias = y->mlp_post_norm.weight ? NULL : y->down.bias,
                                      .block = residual_block(p) };
}

void mlp_block_backward(const struct pass *p, const struct network_layer *y,
                        struct activations_layer *s)
{
    const struct network *n = p->net;
    const struct activations_scratch *w = p->scratch;
    const float *dout =
        residual_post_norm_backward(p, &y->mlp_post_norm, s->mlp_out, s->mlp_out_stats);
    const void *dy = residual_block_gradient(p, dout);
    /* in place where the types are the same, because nothing reads it afterwards */
    void *dup = n->inner == n->dtype ? s->up : w->bf16_scratch;

    residual_bias_backward(p, &y->down, dout);
    if (is_gelu_fused(n)) {
        dup = w->ffn_scratch;
        linear_row_gelu_backward(&y->down, dup, s->up, dy, s->hidden, p->rows, p->add);
    } else if (n->experts) {
        experts_down_backward(p, y, s, dy);
    } else {
        linear_row_backward(&y->down, w->ffn_scratch, dy, s->hidden, p->rows, p->add);
    }
    if (!is_gelu_fused(n))
        activate_backward(p, dup, w->ffn_scratch, s);
    if (n->experts) {
        experts_up_backward(p, y, s, dup);
    } else {
        linear_bias_backward(&y->up, dup, p->rows);
        linear_column_backward(&y->up, w->outer, dup, s->mid_normed, p->rows, p->add);
    }
    if (!n->is_parallel)
        mlp_block_norm_backward(p, y, s);
}
