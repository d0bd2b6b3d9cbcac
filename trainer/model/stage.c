/* trainer/model/stage.c - see trainer/model/stage.h. */
#include "trainer/model/stage.h"

#include <stddef.h>

#include "layout/family.h"
#include "trainer/data_parallel/fsdp_units.h"
#include "trainer/data_parallel/grad_reduction.h"
#include "trainer/model/attention_block.h"
#include "trainer/model/experts.h"
#include "trainer/model/mlp_block.h"
#include "trainer/model/vocab_parallel_embedding.h"
#include "trainer/model/vocab_parallel_loss.h"

/* The model's first virtual stage begins with the embedding, and its last one ends with the
 * head. */
static bool is_first(const struct network *n, int vstage)
{
    return n->is_first && vstage == 0;
}

static bool is_last(const struct network *n, int vstage)
{
    return n->is_last && vstage == n->n_vstages - 1;
}

float *stage_input(const struct activations *s)
{
    return s->layers[0].x;
}

/* What a pass keeps of layer i, or the scratch that replaces it. */
static struct activations_layer layer_of(const struct pass *p, const struct activations *s, int i)
{
    struct activations_layer layer =
        p->net->recompute == RECOMPUTE_FULL ? p->scratch->layer : s->layers[i];

    layer.x = s->layers[i].x;
    if (!layer.normed) { /* f32, and no norm before a block */
        layer.normed = layer.x;
        layer.mid_normed = layer.mid;
    }
    if (p->net->recompute == RECOMPUTE_SELECTIVE) {
        layer.attended = p->scratch->layer.attended;
        layer.lse = p->scratch->layer.lse;
    }
    return layer;
}

/* Whether every layer writes the residual itself instead of a term to add to it. It does so with
 * recomputation, and with biases under zero3, because the next layer uses the same memory. */
static bool finishes_layers(const struct network *n)
{
    return n->recompute == RECOMPUTE_FULL || (n->is_sharded && n->layers[0].down.bias);
}

/* What must still be added to s->x after the last layer. Nothing of a result in scratch, which the
 * next microbatch may overwrite before the head reads s->x. */
static struct residual_pending leaving(const struct pass *p, int vstage,
                                       const struct activations *s)
{
    const struct network *n = p->net;
    int last = n->vstages[vstage].n - 1;

    if (finishes_layers(n) || residual_block(p))
        return (struct residual_pending){ 0 };
    return mlp_block_pending(p, &n->layers[n->vstages[vstage].first + last], &s->layers[last]);
}

void stage_forward(const struct pass *p, int vstage, struct activations *s)
{
    const struct network *n = p->net;
    const struct network_vstage *c = &n->vstages[vstage];
    struct residual_pending in = { 0 }; /* the input of the first layer is the residual */

    if (is_first(n, vstage)) {
        fsdp_units_need(p->units, n->first_unit);
        vocab_parallel_embedding_forward(p, stage_input(s), s->ids);
    }
    experts_load_begin(p, s->x, is_first(n, vstage) ? NULL : stage_input(s));
    for (int i = 0; i < c->n; i++) {
        const struct network_layer *y = &n->layers[c->first + i];
        struct activations_layer layer = layer_of(p, s, i);
        float *out = i + 1 < c->n ? s->layers[i + 1].x : s->x;

        fsdp_units_need(p->units, y->unit);
        attention_block_forward(p, y, &layer, &in);
        mlp_block_forward(p, y, &layer, out);
        experts_load_add(p, &layer, s->x);
        in = mlp_block_pending(p, y, &layer);
        if (finishes_layers(n)) {
            residual_finish(p, out, &in);
            in = (struct residual_pending){ 0 };
        }
    }
    if (!is_last(n, vstage) || in.block)
        residual_finish(p, s->x, &in);
}

void stage_logits(const struct pass *p, struct activations *s)
{
    struct residual_pending in = leaving(p, p->net->n_vstages - 1, s);

    fsdp_units_need(p->units, p->net->last_unit);
    vocab_parallel_loss_logits(p, s, &in);
}

/* ---- gradients that kernels add to ---- */

/* Arrays that are cleared in few operations: CLEARING_MOST at a time. */
enum { CLEARING_MOST = 256 };

struct clearing {
    const struct network *net;
    struct clear_array of[CLEARING_MOST];
    int n;
};

static void clear_now(struct clearing *c)
{
    const struct kernel_queue *k = &c->net->k;

    if (c->n > 0)
        k->ops->clear(k->queue, &(struct clear){ c->of, c->n });
    c->n = 0;
}

static void clear(struct clearing *c, float *x, int64_t count)
{
    if (!x)
        return;
    if (c->n == CLEARING_MOST)
        clear_now(c);
    c->of[c->n++] = (struct clear_array){ x, count };
}

static void clear_norm(struct clearing *c, const struct network_norm *norm)
{
    clear(c, norm->grad, c->net->model->hidden);
    clear(c, norm->bias_grad, c->net->model->hidden);
}

/* norm: of queries or keys; width: of all of these in a shard. */
static void clear_head_norm(struct clearing *c, const struct network_norm *norm, int64_t width)
{
    const struct network *n = c->net;

    if (!n->norms_all_heads)
        clear(c, norm->grad, n->model->head_dim);
    for (int s = 0; n->norms_all_heads && s < n->shards; s++)
        clear(c, norm->grad + s * norm->stride, width);
}

static void clear_linear_bias(struct clearing *c, const struct linear *l)
{
    for (int s = 0; l->bias_grad && (s == 0 || s < l->shards); s++)
        clear(c, l->bias_grad + s * l->bias_stride, l->out);
}

static void clear_layer(struct clearing *c, const struct network_layer *y)
{
    clear_norm(c, &y->attn_norm);
    clear_norm(c, &y->mlp_norm);
    clear_norm(c, &y->attn_post_norm);
    clear_norm(c, &y->mlp_post_norm);
    clear_head_norm(c, &y->q_norm, c->net->q_width);
    clear_head_norm(c, &y->k_norm, c->net->kv_width);
    clear_linear_bias(c, &y->qkv);
    clear_linear_bias(c, &y->out);
    clear_linear_bias(c, &y->up);
    clear_linear_bias(c, &y->down);
}

/* Clear the gradients before the layers; the embedding's only if no head has written them
 * already. */
static void clear_before(struct clearing *c)
{
    const struct network *n = c->net;
    int64_t hidden = n->model->hidden, first;

    clear(c, n->positions_grad, family_dim_size(DIM_POSITIONS, n->model) * hidden);
    if (n->model->tied && n->is_last && !n->same_bits)
        return;
    for (int s = 0; s < n->shards; s++)
        clear(c, n->embedding_grad + s * n->embedding_stride,
              network_vocab_rows_of(&n->table, s, &first) * hidden);
}

void stage_clear_gradients(const struct network *n)
{
    struct clearing c = { .net = n };

    if (n->is_sharded || n->same_bits) /* cleared per unit; when a group begins */
        return;
    for (int i = 0; i < n->n_layers; i++)
        clear_layer(&c, &n->layers[i]);
    if (n->is_last)
        clear_norm(&c, &n->final_norm);
    if (n->is_first)
        clear_before(&c);
    clear_now(&c);
}

/* With --same-bits a gradient group's gradients are cleared when it begins, and added to those of
 * earlier groups when it ends. */
static bool begins_group(const struct pass *p)
{
    return p->net->same_bits && !p->net->is_sharded && !p->add;
}

static void end_group(const struct pass *p, struct pairwise_range r, const float *span)
{
    if (p->ends_group && !p->net->is_sharded)
        pairwise_sum_add(p->net->pairwise, r, p->group, span + r.at, &p->net->k);
}

static void move(float **grad, ptrdiff_t by)
{
    if (*grad)
        *grad += by;
}

static void move_norm(struct network_norm *n, ptrdiff_t by)
{
    move(&n->grad, by);
    move(&n->bias_grad, by);
}

static void move_linear(struct linear *l, ptrdiff_t by)
{
    move(&l->grad, by);
    move(&l->bias_grad, by);
}

/* The layer with its gradients moved to `span`, a span of the pairwise sum. Kernels write
 * gradients directly to the span, so they are not copied there. */
static struct network_layer layer_in(const struct network *n, const struct network_layer *y,
                                     const float *span)
{
    ptrdiff_t by = span - n->pairwise->sum;
    struct network_layer out = *y;

    move_norm(&out.attn_norm, by);
    move_norm(&out.mlp_norm, by);
    move_norm(&out.attn_post_norm, by);
    move_norm(&out.mlp_post_norm, by);
    move_norm(&out.q_norm, by);
    move_norm(&out.k_norm, by);
    move_linear(&out.qkv, by);
    move_linear(&out.out, by);
    move_linear(&out.up, by);
    move_linear(&out.down, by);
    move_linear(&out.router, by);
    move_linear(&out.gate, by);
    return out;
}

/* Where the gradients of this pass' layers are computed. */
static float *span_of(const struct pass *p)
{
    const struct pairwise_sum *f = p->net->pairwise;

    return p->net->same_bits && !p->net->is_sharded ? pairwise_sum_place(f, p->group) : f->sum;
}

/* Report that the last microbatch has added to the gradients of a unit. */
static void is_final(const struct pass *p, int unit)
{
    if (p->reduction)
        grad_reduction_ready(p->reduction, unit);
}

/* ---- backward ---- */

void stage_loss(const struct pass *p, struct activations *s, double *total)
{
    const struct network *n = p->net;

    stage_logits(p, s);
    vocab_parallel_loss_forward(p, s, total);
    experts_load_loss(p, s->x, total);
    fsdp_units_clear(p->units, n->last_unit);
    if (begins_group(p)) {
        struct clearing zeros = { .net = n };

        clear_norm(&zeros, &n->final_norm);
        clear_now(&zeros);
    }
    vocab_parallel_loss_backward(p, s, p->scale);
    end_group(p, n->after[0], n->pairwise->sum);
    end_group(p, n->after[1], n->pairwise->sum);
    fsdp_units_reduce(p->units, n->last_unit, FSDP_UNITS_AFTER, p->group);
    is_final(p, LAYER_LAST);
}

/* Run a layer forward again from its input, without the last product, unless backward needs its
 * result. */
static void run_again(const struct pass *p, const struct network_layer *y,
                      struct activations_layer *layer)
{
    const struct residual_pending in = { 0 };

    attention_block_forward(p, y, layer, &in);
    mlp_block_forward(p, y, layer, NULL);
}

/* The backward pass of layer number i of this rank. */
static void layer_backward(const struct pass *p, int i, struct activations_layer slot)
{
    const struct network *n = p->net;
    const float *span = span_of(p);
    const struct network_layer y = layer_in(n, &n->layers[i], span);

    fsdp_units_need(p->units, y.unit);
    if (n->recompute == RECOMPUTE_FULL)
        run_again(p, &y, &slot);
    fsdp_units_clear(p->units, y.unit);
    if (begins_group(p)) {
        struct clearing zeros = { .net = n };

        clear_layer(&zeros, &y);
        clear_now(&zeros);
    }
    mlp_block_backward(p, &y, &slot);
    attention_block_backward(p, &y, &slot);
    end_group(p, y.grads, span);
    fsdp_units_reduce(p->units, y.unit, FSDP_UNITS_LAYER, p->group);
    is_final(p, n->layer_numbers[i]);
}

void stage_backward(const struct pass *p, int vstage, struct activations *s)
{
    const struct network *n = p->net;
    const struct network_vstage *c = &n->vstages[vstage];

    if (!is_last(n, vstage))
        residual_begin_backward(p);
    for (int i = c->n - 1; i >= 0; i--)
        layer_backward(p, c->first + i, layer_of(p, s, i));
    if (!is_first(n, vstage))
        return;
    fsdp_units_clear(p->units, n->first_unit);
    if (begins_group(p)) {
        struct clearing zeros = { .net = n };

        clear_before(&zeros);
        clear_now(&zeros);
    }
    vocab_parallel_embedding_backward(p, s->ids);
    end_group(p, n->before, n->pairwise->sum);
    fsdp_units_reduce(p->units, n->first_unit, FSDP_UNITS_BEFORE, p->group);
    is_final(p, LAYER_FIRST);
}
