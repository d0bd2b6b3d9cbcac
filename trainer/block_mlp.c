/* trainer/block_mlp.c - see trainer/block_mlp.h. */
#include "trainer/block_mlp.h"

#include "kernels/cast.h"
#include "kernels/norm.h"
#include "kernels/swiglu.h"

tp_status block_mlp_forward(const struct pass *p, const struct layer *y, struct layer_slot *s,
                            float *out, struct tp_err *err)
{
    const struct net *n = p->net;
    tp_status st;

    norm_rms_forward(s->mid_normed, n->dtype, s->mid_rstd, s->mid, s->x, y->mlp_norm.weight,
                     p->rows, n->model->hidden, (float)n->model->norm_eps);
    if ((st = linear_column_forward(&y->gate_up, s->gate_up, s->mid_normed, p->rows, err)))
        return st;
    swiglu_forward(s->hidden, n->dtype, s->gate_up, s->gate_up + n->ffn, 2 * n->ffn, p->rows,
                   n->ffn);
    return linear_row_forward(&y->down, out, s->hidden, p->rows, err);
}

tp_status block_mlp_backward(const struct pass *p, const struct layer *y, struct layer_slot *s,
                             struct tp_err *err)
{
    const struct net *n = p->net;
    const struct scratch *w = p->scratch;
    bool narrow = n->dtype == DTYPE_BF16;
    const void *dy = w->dx;
    char *dgate_up = (char *)s->gate_up; /* in place: nothing reads gate and up afterwards */
    tp_status st;

    if (narrow) {
        cast(w->dy, DTYPE_BF16, w->dx, DTYPE_F32, p->rows * n->model->hidden);
        dy = w->dy;
        dgate_up = (char *)w->narrow;
    }
    if ((st = linear_row_backward(&y->down, w->wide, dy, s->hidden, p->rows, p->add, err)))
        return st;
    swiglu_backward(dgate_up, dgate_up + n->ffn * dtype_bytes(n->dtype), n->dtype, w->wide,
                    s->gate_up, s->gate_up + n->ffn, 2 * n->ffn, p->rows, n->ffn);
    st = linear_column_backward(&y->gate_up, w->dnormed, dgate_up, s->mid_normed, p->rows, p->add,
                                err);
    if (st)
        return st;
    norm_rms_backward(w->dx, y->mlp_norm.grad, w->dnormed, s->mid, s->mid_rstd, y->mlp_norm.weight,
                      p->rows, n->model->hidden, w->norm);
    return TP_OK;
}
