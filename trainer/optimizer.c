/* trainer/optimizer.c - see trainer/optimizer.h. */
#include "trainer/optimizer.h"

#include <math.h>
#include <string.h>

#include "comm/reduce.h"
#include "kernels/adamw.h"
#include "kernels/bias.h"
#include "trainer/shards.h"
#include "trainer/zero.h"

/* Copy the gradients that are partial to p->partial, or back. */
static void move_partial(const struct params *p, bool back)
{
    float *at = p->partial;

    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i];
        float *grad = p->grad + q->at;

        if (!q->partial)
            continue;
        memcpy(back ? grad : at, back ? at : grad, (size_t)q->n * sizeof *at);
        at += q->n;
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

/* ---- with --same-bits ---- */

/* Shards of entry i's tensor that hold the same part: their gradients in rows; how many. 0: an
 * earlier entry's group. */
static int find_holders(const struct params *p, int i, void *rows[SHARDS_MAX])
{
    const struct param *q = &p->list[i];
    int n = 0;

    for (int k = 0; k < p->n; k++) {
        const struct param *x = &p->list[k];

        if (x->tensor != q->tensor || !box_equal(&x->box, &q->box))
            continue;
        if (k < i)
            return 0;
        rows[n++] = p->grad + x->own.from;
    }
    return n;
}

/* Sum the gradients of KV heads that several shards hold, here and over ranks. */
static tp_status sum_holders(const struct params *p, const struct parallel *par, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < p->n && !st; i++) {
        void *rows[SHARDS_MAX];
        int64_t n = p->list[i].own.n;
        int holders = p->list[i].shared && n ? find_holders(p, i, rows) : 0;

        if (holders > 1)
            comm_reduce(rows, holders, (const void *const *)rows, holders, n, COMM_F32, COMM_SUM);
        if (holders == 0 || !par->kv)
            continue;
        st = comm_all_reduce(par->kv, rows[0], n, COMM_F32, COMM_SUM, err);
        for (int k = 1; k < holders; k++)
            memcpy(rows[k], rows[0], (size_t)n * sizeof(float));
    }
    return st;
}

/* A tied head's gradients to the embedding's, from the other end of the pipeline or from here. */
static tp_status sum_ends(const struct params *p, const struct parallel *par, struct tp_err *err)
{
    if (p->tied.n)
        return comm_all_reduce(par->ends, p->grad + p->tied.at, p->tied.n, COMM_F32, COMM_SUM, err);
    if (p->head.n) /* the embedding comes first */
        bias_add(p->grad + p->list[0].at, p->grad + p->head.at, 1, p->head.n);
    return TP_OK;
}

/* Sequences first, all of them, for they are what ranks and microbatches share in any way. */
static tp_status reduce_in_order(const struct params *p, const struct parallel *par,
                                 struct tp_err *err)
{
    tp_status st = TP_OK;

    if (p->n_owners > 1) {
        TP_TRY(zero_reduce(p, par, err));
        if (p->head.n)
            TP_TRY(
                comm_all_reduce(par->dp, p->grad + p->head.at, p->head.n, COMM_F32, COMM_SUM, err));
    } else if (comm_size(par->dp) > 1) {
        TP_TRY(
            comm_all_reduce(par->dp, p->grad, p->n_elements + p->head.n, COMM_F32, COMM_SUM, err));
    }
    TP_TRY(sum_holders(p, par, err));
    st = sum_ends(p, par, err);
done:
    return st;
}

/* Squares of the rows that this rank has of what it counts; the others are zero. */
static void square_rows(const struct params *p)
{
    memset(p->rows, 0, (size_t)p->n_rows * sizeof *p->rows);
    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i];
        int64_t cols = q->n ? q->n / q->box.len[0] : 0;

        if (q->counted && q->own.n)
            sum_squares_rows(p->rows + q->row + (q->own.from - q->at) / cols, p->grad + q->own.from,
                             q->own.n / cols, cols);
    }
}

/* The squares of all gradients by rows, by entries, over a list of entries that is the same at
 * every layout. Who does not have a row or an entry has a zero, so sums over ranks are exact. */
static tp_status norm_in_order(double *norm, const struct params *p, const struct parallel *par,
                               struct tp_err *err)
{
    double squares = 0;
    tp_status st = TP_OK;

    square_rows(p);
    if (p->n_owners > 1)
        TP_TRY(comm_all_reduce(par->dp, p->rows, p->n_rows, COMM_F64, COMM_SUM, err));
    memset(p->places, 0, (size_t)p->n_places * sizeof *p->places);
    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i];

        for (int64_t r = 0; q->counted && q->n && r < q->box.len[0]; r++)
            p->places[q->place] += p->rows[q->row + r];
    }
    if (comm_size(par->model) > 1)
        TP_TRY(comm_all_reduce(par->model, p->places, p->n_places, COMM_F64, COMM_SUM, err));
    for (int i = 0; i < p->n_places; i++)
        squares += p->places[i];
    *norm = sqrt(squares);
done:
    return st;
}

tp_status optimizer_reduce(const struct params *p, const struct parallel *par, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (p->same_bits)
        return reduce_in_order(p, par, err);
    for (int i = 0; par->kv && i < p->n; i++) {
        int64_t at = p->list[i].at, n = p->list[i].n;

        if (!p->list[i].shared)
            continue;
        while (i + 1 < p->n && p->list[i + 1].shared && p->list[i + 1].at == at + n)
            n += p->list[++i].n; /* k and v of a layer in one call */
        TP_TRY(comm_all_reduce(par->kv, p->grad + at, n, COMM_F32, COMM_SUM, err));
    }
    if (p->n_partial)
        TP_TRY(reduce_partial(p, par->tp, err));
    if (p->tied.n)
        TP_TRY(
            comm_all_reduce(par->ends, p->grad + p->tied.at, p->tied.n, COMM_F32, COMM_SUM, err));
    if (p->n_owners > 1)
        return zero_reduce(p, par, err);
    if (comm_size(par->replicas) > 1)
        st = comm_all_reduce(par->replicas, p->grad, p->n_elements, COMM_F32, COMM_SUM, err);
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
        return norm_in_order(norm, p, par, err);
    for (int i = 0; i < p->n; i++)
        if (p->list[i].counted)
            squares += sum_squares(p->grad + p->list[i].own.from, p->list[i].own.n);
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
        const struct param *q = &p->list[i];

        h.weight_decay = q->decay ? (float)o->weight_decay : 0;
        adamw_step(p->value + q->own.from, p->exp_avg + q->own.to, p->exp_avg_sq + q->own.to,
                   p->grad + q->own.from, p->value_bf16 ? p->value_bf16 + q->own.from : NULL,
                   q->own.n, &h);
    }
    return p->n_owners > 1 ? zero_gather(p, par->dp, err) : TP_OK;
}
