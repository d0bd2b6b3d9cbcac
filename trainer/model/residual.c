/* trainer/model/residual.c - see trainer/model/residual.h. */
#include "trainer/model/residual.h"

#include <string.h>

#include "kernels/bias.h"
#include "kernels/cpu/thread.h"
#include "kernels/layernorm.h"
#include "kernels/norm.h"
#include "trainer/same_bits/emulated_shards.h"

static struct layernorm view(const struct pass *p, const struct norm *norm, float *x, float *stats)
{
    return (struct layernorm){ .rows = p->stream_rows,
                               .cols = p->net->model->hidden,
                               .eps = (float)p->net->model->norm_eps,
                               .w = norm->weight,
                               .b = norm->bias,
                               .x = x,
                               .mean = stats + p->stream_rows,
                               .rstd = stats };
}

void stream_norm(const struct pass *p, const struct norm *norm, void *y, float *stats, float *x,
                 const struct arriving *in)
{
    const struct model *m = p->net->model;

    if (norm->bias) {
        struct layernorm a = view(p, norm, x, stats);

        layernorm_forward(y, p->net->dtype, &a, in->residual, in->bias);
    } else {
        norm_rms_forward(y, p->net->dtype, stats, x, in->residual, norm->weight, p->stream_rows,
                         m->hidden, (float)m->norm_eps);
    }
}

/* ---- gradients that are sums over rows ---- */

/* Rows first .. first + n - 1 of the stream. */
struct rows {
    int64_t first, n;
};

/* What such a gradient is made from. */
struct row_sum {
    const struct pass *p;
    const struct norm *norm; /* NULL: the sum of dx, for a bias */
    float *dx;
    const float *dy;
    float *x, *stats;
};

static void add_rows(const struct row_sum *a, struct rows r, float *grad, float *bias_grad,
                     float *workspace)
{
    int64_t h = a->p->net->model->hidden, at = r.first * h;

    if (!a->norm) {
        bias_gradient(grad, a->dx + at, DTYPE_F32, r.n, h, workspace);
    } else if (a->norm->bias) {
        struct layernorm v = view(a->p, a->norm, a->x + at, a->stats + r.first);

        v.rows = r.n;
        layernorm_backward(a->dx + at, grad, bias_grad, a->dy + at, &v, workspace);
    } else {
        norm_rms_backward(a->dx + at, grad, a->dy + at, a->x + at, a->stats + r.first,
                          a->norm->weight, r.n, h, workspace);
    }
}

static bool has_two(const struct row_sum *a)
{
    return a->norm && a->norm->bias;
}

static int blocks_of(const struct net *n)
{
    return n->n_virtual / n->split;
}

static void block_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct row_sum *a = ctx;
    const struct net *n = a->p->net;
    int64_t h = n->model->hidden, width = has_two(a) ? 2 * h : h;
    struct rows r = { .n = a->p->stream_rows / blocks_of(n) };

    for (int64_t b = lo; b < hi; b++) {
        float *grad = a->p->scratch->blocks + b * width;

        r.first = b * r.n;
        memset(grad, 0, (size_t)width * sizeof *grad);
        add_rows(a, r, grad, grad + h, a->p->scratch->sums + thread * 2 * width);
    }
}

/* grad (and bias_grad, where the sum has two) += the sum over all rows. */
static tp_status add_row_sum(const struct row_sum *a, float *grad, float *bias_grad,
                             struct tp_err *err)
{
    const struct net *n = a->p->net;
    float *sum = a->p->scratch->blocks;
    int64_t h = n->model->hidden, width = has_two(a) ? 2 * h : h;
    tp_status st = TP_OK;

    if (!n->same_bits) {
        add_rows(a, (struct rows){ 0, a->p->stream_rows }, grad, bias_grad, a->p->scratch->sums);
        return TP_OK;
    }
    kernels_each(blocks_of(n), block_range, (void *)a);
    shards_sum(sum, sum, blocks_of(n), width, width);
    if (n->split > 1)
        st = comm_all_reduce(n->tp, sum, width, COMM_F32, COMM_SUM, err);
    bias_add(grad, sum, 1, h);
    if (has_two(a))
        bias_add(bias_grad, sum + h, 1, h);
    return st;
}

tp_status stream_norm_backward(const struct pass *p, const struct norm *norm, float *dx,
                               const float *dy, float *x, float *stats, struct tp_err *err)
{
    struct row_sum a = { p, norm, dx, dy, x, stats };

    return add_row_sum(&a, norm->grad, norm->bias_grad, err);
}

tp_status stream_bias_backward(const struct pass *p, const struct linear *l, const float *dx,
                               struct tp_err *err)
{
    struct row_sum a = { .p = p, .dx = (float *)dx };

    return l->bias_grad ? add_row_sum(&a, l->bias_grad, NULL, err) : TP_OK;
}

void stream_finish(const struct pass *p, float *x, const struct arriving *in)
{
    residual_add(x, in->residual, in->bias, p->stream_rows, p->net->model->hidden);
}
