/* trainer/embedding_tp.c - see trainer/embedding_tp.h. */
#include "trainer/embedding_tp.h"

#include "kernels/embedding.h"

tp_status embedding_tp_forward(const struct pass *p, float *x, const int32_t *ids,
                               struct tp_err *err)
{
    const struct net *n = p->net;

    embedding_forward(x, n->embedding, n->dtype, ids, p->rows, n->vocab_first, n->vocab,
                      n->model->hidden);
    if (comm_size(n->tp) == 1)
        return TP_OK;
    return comm_all_reduce(n->tp, x, p->rows * n->model->hidden, COMM_F32, COMM_SUM, err);
}

void embedding_tp_backward(const struct pass *p, const int32_t *ids)
{
    const struct net *n = p->net;

    embedding_backward(n->embedding_grad, p->scratch->dx, ids, p->rows, n->vocab_first, n->vocab,
                       n->model->hidden);
}
