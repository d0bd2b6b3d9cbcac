/* trainer/stage.c - see trainer/stage.h. */
#include "trainer/stage.h"

#include <string.h>

#include "trainer/block_attention.h"
#include "trainer/block_mlp.h"
#include "trainer/embedding_tp.h"
#include "trainer/loss_tp.h"

tp_status stage_forward(const struct pass *p, struct slot *s, struct tp_err *err)
{
    const struct net *n = p->net;
    const float *residual = NULL; /* what enters the first layer is the stream already */
    tp_status st = embedding_tp_forward(p, n->n_layers ? s->layers[0].x : s->x, s->ids, err);

    if (st)
        return st;
    for (int i = 0; i < n->n_layers; i++) {
        struct layer_slot *layer = &s->layers[i];
        float *out = i + 1 < n->n_layers ? s->layers[i + 1].x : s->x;

        if ((st = block_attention_forward(p, &n->layers[i], layer, residual, err)))
            return st;
        if ((st = block_mlp_forward(p, &n->layers[i], layer, out, err)))
            return st;
        residual = layer->mid;
    }
    return loss_tp_logits(p, s, residual, err);
}

tp_status stage_backward(const struct pass *p, struct slot *s, struct tp_err *err)
{
    const struct net *n = p->net;
    tp_status st;

    for (int i = n->n_layers - 1; i >= 0; i--) {
        if ((st = block_mlp_backward(p, &n->layers[i], &s->layers[i], err)))
            return st;
        if ((st = block_attention_backward(p, &n->layers[i], &s->layers[i], err)))
            return st;
    }
    embedding_tp_backward(p, s->ids);
    return TP_OK;
}

static void clear(float *x, int64_t n)
{
    memset(x, 0, (size_t)n * sizeof *x);
}

void stage_clear_gradients(const struct net *n)
{
    int64_t hidden = n->model->hidden;

    for (int i = 0; i < n->n_layers; i++) {
        clear(n->layers[i].attn_norm.grad, hidden);
        clear(n->layers[i].mlp_norm.grad, hidden);
    }
    clear(n->final_norm.grad, hidden);
    if (!n->model->tied)
        clear(n->embedding_grad, n->vocab * hidden);
}
