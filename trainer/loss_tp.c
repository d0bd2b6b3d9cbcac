/* trainer/loss_tp.c - see trainer/loss_tp.h. */
#include "trainer/loss_tp.h"

#include <string.h>

#include "kernels/loss.h"

tp_status loss_tp_logits(const struct pass *p, struct slot *s, const struct arriving *in,
                         struct tp_err *err)
{
    const struct net *n = p->net;

    stream_norm(p, &n->final_norm, s->normed, s->stats, s->x, in);
    return linear_column_forward(&n->head, p->scratch->wide, s->normed, p->rows, err);
}

tp_status loss_tp_forward(const struct pass *p, const struct slot *s, double *total,
                          struct tp_err *err)
{
    const struct net *n = p->net;
    const struct scratch *w = p->scratch;
    float *sum = w->row_sums, *target = w->row_sums + p->rows;
    bool alone = !n->head.tp || comm_size(n->head.tp) == 1;
    tp_status st = TP_OK;

    loss_max(w->row_max, w->wide, p->rows, n->vocab);
    if (!alone)
        st = comm_all_reduce(n->head.tp, w->row_max, p->rows, COMM_F32, COMM_MAX, err);
    if (st)
        return st;
    loss_sum_exp(sum, target, w->wide, w->row_max, s->targets, n->vocab_first, p->rows, n->vocab);
    if (!alone)
        st = comm_all_reduce(n->head.tp, sum, 2 * p->rows, COMM_F32, COMM_SUM, err);
    if (st)
        return st;
    *total = loss_total(sum, target, p->rows);
    return TP_OK;
}

tp_status loss_tp_backward(const struct pass *p, struct slot *s, float scale, struct tp_err *err)
{
    const struct net *n = p->net;
    const struct scratch *w = p->scratch;
    void *dlogits = n->dtype == DTYPE_BF16 ? (void *)w->narrow : (void *)w->wide;
    int64_t hidden = n->model->hidden;
    tp_status st;

    loss_backward(dlogits, n->dtype, w->wide, w->row_sums, s->targets, n->vocab_first, p->rows,
                  n->vocab, scale);
    st = linear_column_backward(&n->head, w->dnormed, dlogits, s->normed, p->rows, p->add, err);
    if (st)
        return st;
    memset(w->dx, 0, (size_t)(p->stream_rows * hidden) * sizeof(float));
    stream_norm_backward(p, &n->final_norm, w->dx, w->dnormed, s->x, s->stats);
    return TP_OK;
}
