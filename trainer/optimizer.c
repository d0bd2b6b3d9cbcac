/* trainer/optimizer.c - see trainer/optimizer.h. */
#include "trainer/optimizer.h"

#include <math.h>

#include "kernels/adamw.h"

tp_status optimizer_reduce(const struct params *p, const struct parallel *par, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; par->kv && i < p->n; i++) {
        int64_t at = p->list[i].at, n = p->list[i].n;

        if (!p->list[i].shared)
            continue;
        while (i + 1 < p->n && p->list[i + 1].shared && p->list[i + 1].at == at + n)
            n += p->list[++i].n; /* k and v of a layer in one call */
        TP_TRY(comm_all_reduce(par->kv, p->grad + at, n, COMM_F32, COMM_SUM, err));
    }
    if (comm_size(par->dp) > 1)
        st = comm_all_reduce(par->dp, p->grad, p->n_elements, COMM_F32, COMM_SUM, err);
done:
    return st;
}

tp_status optimizer_norm(double *norm, const struct params *p, const struct parallel *par,
                         struct tp_err *err)
{
    double squares = 0;
    tp_status st = TP_OK;

    for (int i = 0; i < p->n; i++)
        if (p->list[i].counted)
            squares += sum_squares(p->grad + p->list[i].at, p->list[i].n);
    if (comm_size(par->tp) > 1)
        st = comm_all_reduce(par->tp, &squares, 1, COMM_F64, COMM_SUM, err);
    if (!st)
        *norm = sqrt(squares);
    return st;
}

void optimizer_update(const struct params *p, const struct optimizer_options *o, int64_t step,
                      double lr, double norm)
{
    double t = (double)(step + 1);
    struct adamw h = { .lr = (float)lr,
                       .beta1 = (float)o->beta1,
                       .beta2 = (float)o->beta2,
                       .eps = (float)o->eps,
                       .correction1 = (float)(1 - pow(o->beta1, t)),
                       .correction2 = (float)(1 - pow(o->beta2, t)),
                       .grad_scale = 1 };

    if (o->clip > 0 && norm + 1e-6 > o->clip)
        h.grad_scale = (float)(o->clip / (norm + 1e-6));
    for (int i = 0; i < p->n; i++) {
        int64_t at = p->list[i].at;

        h.weight_decay = p->list[i].decay ? (float)o->weight_decay : 0;
        adamw_step(p->value + at, p->exp_avg + at, p->exp_avg_sq + at, p->grad + at,
                   p->value_bf16 ? p->value_bf16 + at : NULL, p->list[i].n, &h);
    }
}
