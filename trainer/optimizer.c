/* trainer/optimizer.c - see trainer/optimizer.h. */
#include "trainer/optimizer.h"

#include <math.h>
#include <string.h>

#include "kernels/adamw.h"
#include "trainer/same_bits.h"
#include "trainer/zero.h"

/* Copy the gradients that are partial to p->partial, or back. */
static void move_partial(const struct params *p, bool back)
{
    float *at = p->partial;

    for (int i = 0; i < p->n; i++) {
        const struct sums g = params_sums(p, &p->list[i]);

        if (!p->list[i].partial || !g.n)
            continue;
        memcpy(back ? g.at : at, back ? at : g.at, (size_t)g.n * sizeof *at);
        at += g.n;
    }
}

/* In one call: each is small. */
static tp_status reduce_partial(const struct params *p, struct comm *tp, struct tp_err *err)
{
    tp_status st;

    move_partial(p, false);
    st = comm_all_reduce(tp, p->partial, p->n_partial, COMM_F32, COMM_SUM, err);
    if (!st)
        move_partial(p, true);
    return st;
}

/* The sum over dp, and over cp. */
static tp_status reduce_replicas(const struct params *p, const struct parallel *par,
                                 struct tp_err *err)
{
    if (p->sharded) /* over dp a microbatch at a time, as it came */
        return comm_size(par->cp) > 1
                   ? comm_all_reduce(par->cp, p->owned_grad, p->n_owned, COMM_F32, COMM_SUM, err)
                   : TP_OK;
    if (p->n_owners > 1)
        return zero_reduce(p, par, err);
    if (comm_size(par->replicas) > 1)
        return comm_all_reduce(par->replicas, p->grad, p->n_elements, COMM_F32, COMM_SUM, err);
    return TP_OK;
}

tp_status optimizer_reduce(const struct params *p, const struct parallel *par, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (p->same_bits)
        return same_bits_reduce(p, par, err);
    for (int i = 0; par->kv && i < p->n; i++) {
        struct sums g = params_sums(p, &p->list[i]);

        if (!p->list[i].shared)
            continue;
        while (i + 1 < p->n && p->list[i + 1].shared &&
               params_sums(p, &p->list[i + 1]).at == g.at + g.n)
            g.n += params_sums(p, &p->list[++i]).n; /* k and v of a layer in one call */
        TP_TRY(comm_all_reduce(par->kv, g.at, g.n, COMM_F32, COMM_SUM, err));
    }
    if (p->n_partial)
        TP_TRY(reduce_partial(p, par->tp, err));
    if (p->tied >= 0) {
        struct sums g = params_sums(p, &p->list[p->tied]);

        TP_TRY(comm_all_reduce(par->ends, g.at, g.n, COMM_F32, COMM_SUM, err));
    }
    st = reduce_replicas(p, par, err);
done:
    return st;
}

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

tp_status optimizer_update(const struct params *p, const struct parallel *par,
                           const struct optimizer_options *o, int64_t step, double lr, double norm,
                           struct tp_err *err)
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
        const struct owned x = params_owned(p, &p->list[i]);

        h.weight_decay = p->list[i].decay ? (float)o->weight_decay : 0;
        adamw_step(x.value, x.exp_avg, x.exp_avg_sq, x.grad, x.value_bf16, x.n, &h);
    }
    return p->n_owners > 1 && !p->sharded ? zero_gather(p, par->dp, err) : TP_OK;
}
