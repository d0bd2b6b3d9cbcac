/* trainer/stage.c - see trainer/stage.h. */
#include "trainer/stage.h"

#include <string.h>

#include "trainer/block_attention.h"
#include "trainer/block_mlp.h"
#include "trainer/embedding_tp.h"
#include "trainer/loss_tp.h"

bool stage_is_first(const struct net *n, int chunk)
{
    return n->is_first && chunk == 0;
}

bool stage_is_last(const struct net *n, int chunk)
{
    return n->is_last && chunk == n->n_chunks - 1;
}

float *stage_input(const struct slot *s)
{
    return s->layers[0].x;
}

/* What a pass keeps of layer i of the chunk, or what is at work in its place. */
static struct layer_slot layer_of(const struct pass *p, const struct slot *s, int i)
{
    struct layer_slot layer = p->net->recompute ? p->scratch->layer : s->layers[i];

    layer.x = s->layers[i].x;
    return layer;
}

/* What the last layer of a chunk left to be added to s->x. */
static struct arriving leaving(const struct net *n, int chunk, const struct slot *s)
{
    int last = n->chunks[chunk].n - 1;

    if (n->recompute)
        return (struct arriving){ 0 };
    return (struct arriving){ s->layers[last].mid,
                              n->layers[n->chunks[chunk].first + last].down.bias };
}

tp_status stage_forward(const struct pass *p, int chunk, struct slot *s, struct tp_err *err)
{
    const struct net *n = p->net;
    const struct chunk *c = &n->chunks[chunk];
    struct arriving in = { 0 }; /* what enters the first layer is the stream already */
    tp_status st = TP_OK;

    if (stage_is_first(n, chunk))
        st = embedding_tp_forward(p, stage_input(s), s->ids, err);
    for (int i = 0; i < c->n && !st; i++) {
        const struct layer *y = &n->layers[c->first + i];
        struct layer_slot layer = layer_of(p, s, i);
        float *out = i + 1 < c->n ? s->layers[i + 1].x : s->x;

        if ((st = block_attention_forward(p, y, &layer, &in, err)))
            break;
        st = block_mlp_forward(p, y, &layer, out, err);
        in = (struct arriving){ layer.mid, y->down.bias };
        if (n->recompute) { /* the layer's memory is the next one's too */
            stream_finish(p, out, &in);
            in = (struct arriving){ 0 };
        }
    }
    if (!st && !stage_is_last(n, chunk))
        stream_finish(p, s->x, &in);
    return st;
}

tp_status stage_logits(const struct pass *p, struct slot *s, struct tp_err *err)
{
    struct arriving in = leaving(p->net, p->net->n_chunks - 1, s);

    return loss_tp_logits(p, s, &in, err);
}

/* ---- gradients that are added to ---- */

static void clear(float *x, int64_t n)
{
    if (x)
        memset(x, 0, (size_t)n * sizeof *x);
}

static void clear_norm(const struct norm *norm, int64_t hidden)
{
    clear(norm->grad, hidden);
    clear(norm->bias_grad, hidden);
}

static void clear_linear_bias(const struct linear *l)
{
    for (int s = 0; s == 0 || s < l->shards; s++)
        clear(l->bias_grad ? l->bias_grad + s * l->bias_stride : NULL, l->out);
}

static void clear_layer(const struct net *n, const struct layer *y)
{
    int64_t hidden = n->model->hidden;

    clear_norm(&y->attn_norm, hidden);
    clear_norm(&y->mlp_norm, hidden);
    clear_linear_bias(&y->qkv);
    clear_linear_bias(&y->out);
    clear_linear_bias(&y->up);
    clear_linear_bias(&y->down);
}

/* The embedding's, if no head has written them before. */
static void clear_before(const struct net *n)
{
    clear(n->positions_grad, n->model->max_positions * n->model->hidden);
    if (n->same_bits || !(n->model->tied && n->is_last))
        for (int s = 0; s < n->shards; s++) {
            int64_t first, rows = net_vocab(n, s, &first);

            clear(n->embedding_grad + s * n->embedding_stride, rows * n->model->hidden);
        }
}

void stage_clear_gradients(const struct net *n)
{
    if (n->same_bits)
        return; /* when a leaf begins */
    for (int i = 0; i < n->n_layers; i++)
        clear_layer(n, &n->layers[i]);
    if (n->is_last)
        clear_norm(&n->final_norm, n->model->hidden);
    if (n->is_first)
        clear_before(n);
}

/* With --same-bits the gradients of a leaf are zero when it begins, and go where those of earlier
 * leaves are when it ends. */
static bool begins_leaf(const struct pass *p)
{
    return p->net->same_bits && !p->add;
}

static void end_leaf(const struct pass *p, struct range r)
{
    if (p->leaf >= 0)
        fold_add(p->net->fold, r, p->leaf);
}

/* ---- backward ---- */

tp_status stage_loss(const struct pass *p, struct slot *s, float scale, double *total,
                     struct tp_err *err)
{
    tp_status st;

    if ((st = stage_logits(p, s, err)))
        return st;
    if ((st = loss_tp_forward(p, s, total, err)))
        return st;
    if (begins_leaf(p))
        clear_norm(&p->net->final_norm, p->net->model->hidden);
    st = loss_tp_backward(p, s, scale, err);
    for (int i = 0; i < 2; i++)
        end_leaf(p, p->net->after[i]);
    return st;
}

/* A layer forward, from its input, but for the product whose result its backward does not need. */
static tp_status run_again(const struct pass *p, const struct layer *y, struct layer_slot *layer,
                           struct tp_err *err)
{
    const struct arriving in = { 0 };
    tp_status st = block_attention_forward(p, y, layer, &in, err);

    return st ? st : block_mlp_forward(p, y, layer, NULL, err);
}

tp_status stage_backward(const struct pass *p, int chunk, struct slot *s, struct tp_err *err)
{
    const struct net *n = p->net;
    const struct chunk *c = &n->chunks[chunk];
    tp_status st;

    for (int i = c->n - 1; i >= 0; i--) {
        const struct layer *y = &n->layers[c->first + i];
        struct layer_slot layer = layer_of(p, s, i);

        if (begins_leaf(p))
            clear_layer(n, y);
        if (n->recompute && (st = run_again(p, y, &layer, err)))
            return st;
        if ((st = block_mlp_backward(p, y, &layer, err)))
            return st;
        if ((st = block_attention_backward(p, y, &layer, err)))
            return st;
        end_leaf(p, y->grads);
    }
    if (!stage_is_first(n, chunk))
        return TP_OK;
    if (begins_leaf(p))
        clear_before(n);
    st = embedding_tp_backward(p, s->ids, err);
    end_leaf(p, n->before);
    return st;
}
