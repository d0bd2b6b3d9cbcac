/* trainer/embedding_tp.c - see trainer/embedding_tp.h. */
#include "trainer/embedding_tp.h"

#include "kernels/bias.h"
#include "kernels/embedding.h"

tp_status embedding_tp_forward(const struct pass *p, float *x, const int32_t *ids,
                               struct tp_err *err)
{
    const struct net *n = p->net;

    int64_t h = n->model->hidden;
    tp_status st = TP_OK;

    embedding_forward(x, n->embedding, n->dtype, ids, p->rows, n->vocab_first, n->vocab, h);
    if (n->embedding_tp && comm_size(n->embedding_tp) > 1)
        st = comm_all_reduce(n->embedding_tp, x, p->rows * h, COMM_F32, COMM_SUM, err);
    if (n->positions && !st) /* a sequence is one long row to which all positions are added */
        bias_add(x, n->positions, p->sequences, n->seq * h);
    return st;
}

void embedding_tp_backward(const struct pass *p, const int32_t *ids)
{
    const struct net *n = p->net;

    embedding_backward(n->embedding_grad, p->scratch->dx, ids, p->rows, n->vocab_first, n->vocab,
                       n->model->hidden);
    if (n->positions)
        bias_gradient(n->positions_grad, p->scratch->dx, DTYPE_F32, p->sequences,
                      n->seq * n->model->hidden, p->scratch->sums);
}
