/* trainer/activation.c - see trainer/activation.h. */
#include "trainer/activation.h"

#include "kernels/norm.h"
#include "trainer/block_attention.h"

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

tp_status slot_init(struct slot *s, const struct net *n, struct arena *arena, struct tp_err *err)
{
    *s = (struct slot){ .layers = arena_array(arena, (size_t)n->n_layers, sizeof *s->layers) };
    if (!s->layers)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d layers", n->n_layers);
    return TP_OK;
}

static void layer_take(struct layer_slot *s, const struct net *n, int64_t rows, struct span *shared,
                       struct span *own)
{
    int64_t h = n->model->hidden, e = dtype_bytes(n->dtype);

    s->x = span_take(shared, rows * h, sizeof(float));
    s->rstd = span_take(own, rows, sizeof(float));
    s->normed = span_take(own, rows * h, e);
    s->qkv = span_take(own, rows * n->qkv_width, e);
    s->attended = span_take(own, rows * n->q_width, e);
    s->lse = span_take(own, rows * n->heads, sizeof(float));
    s->mid = span_take(shared, rows * h, sizeof(float));
    s->mid_rstd = span_take(own, rows, sizeof(float));
    s->mid_normed = span_take(own, rows * h, e);
    s->gate_up = span_take(own, rows * 2 * n->ffn, sizeof(float));
    s->hidden = span_take(own, rows * n->ffn, e);
}

void slot_take(struct slot *s, const struct net *n, int64_t sequences, struct span *shared,
               struct span *own)
{
    int64_t rows = sequences * n->seq, h = n->model->hidden;

    s->ids = span_take(own, rows, sizeof(int32_t));
    s->targets = span_take(own, rows, sizeof(int32_t));
    for (int i = 0; i < n->n_layers; i++)
        layer_take(&s->layers[i], n, rows, shared, own);
    s->x = span_take(shared, rows * h, sizeof(float));
    s->rstd = span_take(own, rows, sizeof(float));
    s->normed = span_take(own, rows * h, dtype_bytes(n->dtype));
}

void scratch_take(struct scratch *s, const struct net *n, int64_t sequences, struct span *shared,
                  struct span *own)
{
    int64_t rows = sequences * n->seq, h = n->model->hidden;

    s->dx = span_take(own, rows * h, sizeof(float));
    s->dnormed = span_take(shared, rows * h, sizeof(float));
    s->wide = span_take(own, rows * most(most(n->ffn, n->q_width), n->vocab), sizeof(float));
    s->dqkv = span_take(own, rows * n->qkv_width, sizeof(float));
    if (n->dtype == DTYPE_BF16) {
        s->narrow =
            span_take(own, rows * most(most(2 * n->ffn, n->qkv_width), n->vocab), sizeof(uint16_t));
        s->dy = span_take(own, rows * h, sizeof(uint16_t));
    }
    s->row_max = span_take(shared, rows, sizeof(float));
    s->row_sums = span_take(shared, 2 * rows, sizeof(float));
    s->attention = span_take(own, block_attention_workspace(n, sequences), sizeof(float));
    s->norm = span_take(own, norm_rms_workspace(h), sizeof(float));
}
