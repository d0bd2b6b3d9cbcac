/* trainer/net.c - see trainer/net.h. */
#include "trainer/net.h"

#include <stdio.h>

#include "kernels/rope.h"

enum { NAME_MAX_TEXT = 128 };

static tp_status find(const struct param **out, const struct layout *l, const struct params *p,
                      const char *name, struct tp_err *err)
{
    int i = params_find(p, l, name);

    if (i < 0)
        return tp_fail(err, TP_E_INTERNAL, "%s is not among this rank's tensors", name);
    *out = &p->list[i];
    return TP_OK;
}

static tp_status find_in_layer(const struct param **out, const struct layout *l,
                               const struct params *p, int layer, const char *suffix,
                               struct tp_err *err)
{
    char name[NAME_MAX_TEXT];

    snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, suffix);
    return find(out, l, p, name, err);
}

tp_status net_init(struct net *n, const struct model *m, const struct layout *l,
                   const struct params *p, int64_t seq, struct arena *arena, struct tp_err *err)
{
    const struct param *q = NULL, *k = NULL, *gate = NULL, *embed = NULL;
    tp_status st;

    *n = (struct net){ .model = m, .dtype = p->dtype, .seq = seq, .n_layers = m->layers };
    TP_TRY(find_in_layer(&q, l, p, 0, "self_attn.q_proj", err));
    TP_TRY(find_in_layer(&k, l, p, 0, "self_attn.k_proj", err));
    TP_TRY(find_in_layer(&gate, l, p, 0, "mlp.gate_proj", err));
    TP_TRY(find(&embed, l, p, "model.embed_tokens.weight", err));
    n->q_width = q->box.len[0];
    n->kv_width = k->box.len[0];
    n->qkv_width = n->q_width + 2 * n->kv_width;
    n->heads = n->q_width / m->head_dim;
    n->kv_heads = n->kv_width / m->head_dim;
    n->ffn = gate->box.len[0];
    n->vocab = embed->n ? embed->box.len[0] : 0;
    n->vocab_first = embed->n ? embed->box.lo[0] : 0;
    n->layers = arena_array(arena, (size_t)n->n_layers, sizeof *n->layers);
    if (!n->layers)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d layers", n->n_layers);
done:
    return st;
}

void net_take(struct net *n, struct span *own)
{
    n->rope = span_take(own, n->seq * n->model->head_dim, sizeof(float));
}

static struct linear linear_at(const struct net *n, const struct params *p, int64_t at, int64_t out,
                               int64_t in)
{
    return (struct linear){ .weight = params_operand(p, at),
                            .grad = p->grad + at,
                            .out = out,
                            .in = in,
                            .type = n->dtype,
                            .tp = n->tp };
}

static struct norm norm_at(const struct params *p, int64_t at)
{
    return (struct norm){ .weight = p->value + at, .grad = p->grad + at };
}

static tp_status bind_layer(struct net *n, int i, const struct layout *l, const struct params *p,
                            struct tp_err *err)
{
    struct layer *y = &n->layers[i];
    const struct param *norm = NULL, *q = NULL, *o = NULL, *norm2 = NULL, *gate = NULL,
                       *down = NULL;
    int64_t hidden = n->model->hidden;
    tp_status st;

    TP_TRY(find_in_layer(&norm, l, p, i, "input_layernorm", err));
    TP_TRY(find_in_layer(&q, l, p, i, "self_attn.q_proj", err));
    TP_TRY(find_in_layer(&o, l, p, i, "self_attn.o_proj", err));
    TP_TRY(find_in_layer(&norm2, l, p, i, "post_attention_layernorm", err));
    TP_TRY(find_in_layer(&gate, l, p, i, "mlp.gate_proj", err));
    TP_TRY(find_in_layer(&down, l, p, i, "mlp.down_proj", err));
    y->attn_norm = norm_at(p, norm->at);
    y->qkv = linear_at(n, p, q->at, n->qkv_width, hidden);
    y->out = linear_at(n, p, o->at, hidden, n->q_width);
    y->mlp_norm = norm_at(p, norm2->at);
    y->gate_up = linear_at(n, p, gate->at, 2 * n->ffn, hidden);
    y->down = linear_at(n, p, down->at, hidden, n->ffn);
done:
    return st;
}

tp_status net_bind(struct net *n, const struct layout *l, const struct params *p,
                   const struct parallel *par, struct tp_err *err)
{
    const struct model *m = n->model;
    const struct param *embed = NULL, *norm = NULL, *head;
    tp_status st = TP_OK;

    n->tp = par->tp;
    for (int i = 0; i < n->n_layers; i++)
        TP_TRY(bind_layer(n, i, l, p, err));
    TP_TRY(find(&embed, l, p, "model.embed_tokens.weight", err));
    TP_TRY(find(&norm, l, p, "model.norm.weight", err));
    head = embed;
    if (!m->tied)
        TP_TRY(find(&head, l, p, "lm_head.weight", err));
    n->embedding = params_operand(p, embed->at);
    n->embedding_grad = p->grad + embed->at;
    n->final_norm = norm_at(p, norm->at);
    n->head = linear_at(n, p, head->at, n->vocab, m->hidden);
    rope_table(n->rope, 0, n->seq, m->head_dim, m->rope_theta);
done:
    return st;
}
