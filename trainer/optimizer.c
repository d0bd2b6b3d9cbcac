/* trainer/optimizer.c - see trainer/optimizer.h. */
#include "trainer/optimizer.h"

#include <math.h>

#include "kernels/adamw.h"
#include "trainer/data_parallel/zero_buckets.h"
#include "trainer/same_bits/same_bits.h"

tp_status optimizer_norm(double *norm, const struct params *p, const struct parallel *par,
                         struct tp_err *err)
{
    struct comm *holders = p->n_owners > 1 ? par->owners : par->model;
    double squares = 0;
    tp_status st = TP_OK;

    if (p->same_bits)
        return same_bits_norm(norm, p, par, err);
    for (int i = 0; i < p->n; i++)
        if (p->list[i].counted)
            squares += sum_squares(params_owned(p, &p->list[i]).grad, p->list[i].own.n);
    if (comm_size(holders) > 1)
        st = comm_all_reduce(holders, &squares, 1, COMM_F64, COMM_SUM, err);
    if (!st)
        *norm = sqrt(squares);
    return st;
}

static void update_bucket(const struct params *p, const struct bucket *b, struct adamw *h,
                          double weight_decay)
{
    for (int i = b->first; i < b->first + b->n; i++) {
        const struct owned x = params_owned(p, &p->list[i]);

        h->weight_decay = p->list[i].decay ? weight_decay : 0;
        adamw_step(x.value, x.exp_avg, x.exp_avg_sq, x.grad, x.value_bf16, x.n, h);
    }
}

tp_status optimizer_update(const struct params *p, const struct parallel *par,
                           const struct optimizer_options *o, int64_t step, double lr, double norm,
                           struct tp_err *err)
{
    double t = (double)(step + 1);
    struct adamw h = { .lr = lr,
                       .beta1 = o->beta1,
                       .beta2 = o->beta2,
                       .eps = o->eps,
                       .correction1 = 1 - pow(o->beta1, t),
                       .correction2 = 1 - pow(o->beta2, t),
                       .grad_scale = 1 };
    struct zero_way way = { .weights = true };
    tp_status st = TP_OK;

    if (o->clip > 0 && norm + 1e-6 > o->clip)
        h.grad_scale = o->clip / (norm + 1e-6);
    for (int i = 0; i < p->n_buckets; i++) {
        update_bucket(p, &p->buckets[i], &h, o->weight_decay);
        if (p->n_owners > 1 && !p->sharded)
            TP_TRY(zero_send(p, par, &way, i, err)); /* while the next one is updated */
    }
    TP_TRY(zero_land(p, par, &way, err));
done:
    return st;
}
