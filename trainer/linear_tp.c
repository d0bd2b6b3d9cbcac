/* trainer/linear_tp.c - see trainer/linear_tp.h. */
#include "trainer/linear_tp.h"

#include <stdatomic.h>
#include <stddef.h>

#include "kernels/bias.h"
#include "kernels/gemm.h"
#include "kernels/thread.h"
#include "trainer/shards.h"

/* Matrices of in_out layers, as the products see them; one [out][in] matrix otherwise. */
struct part {
    const void *weight;
    float *grad;
    int64_t at, n; /* columns of y */
};

static int parts_of(const struct linear *l)
{
    return l->parts > 1 ? l->parts : 1;
}

static struct part part_of(const struct linear *l, int i)
{
    int64_t n = l->out / parts_of(l), at = i * n * l->in;

    return (struct part){ (const char *)l->weight + at * dtype_bytes(l->type), l->grad + at, i * n,
                          n };
}

/* What a product reads and writes, and how far on the next shard's is: 0 where all share it. */
struct operands {
    float *to; /* NULL: the weight's gradient */
    int64_t to_step;
    const char *dy;
    int64_t dy_step; /* bytes, as the next */
    const char *x;
    int64_t x_step;
    int64_t rows;
    bool add;
};

/* to = y[rows, out] = x[rows, in] W^T */
static tp_status product(const struct linear *l, const struct operands *o, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < parts_of(l) && !st; i++) {
        struct part w = part_of(l, i);
        const struct gemm g = { .trans_b = !l->in_out,
                                .m = o->rows,
                                .n = w.n,
                                .k = l->in,
                                .a = o->x,
                                .lda = l->in,
                                .b = w.weight,
                                .ldb = l->in_out ? w.n : l->in,
                                .c = o->to + w.at,
                                .ldc = l->out,
                                .alpha = 1,
                                .type = l->type };

        st = gemm(&g, err);
    }
    return st;
}

/* to = dx[rows, in] = dy[rows, out] W */
static tp_status input_gradient(const struct linear *l, const struct operands *o,
                                struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < parts_of(l) && !st; i++) {
        struct part w = part_of(l, i);
        const struct gemm g = { .trans_b = l->in_out,
                                .m = o->rows,
                                .n = l->in,
                                .k = w.n,
                                .a = o->dy + w.at * dtype_bytes(l->type),
                                .lda = l->out,
                                .b = w.weight,
                                .ldb = l->in_out ? w.n : l->in,
                                .c = o->to,
                                .ldc = l->in,
                                .alpha = 1,
                                .beta = i > 0 ? 1 : 0,
                                .type = l->type };

        st = gemm(&g, err);
    }
    return st;
}

/* dW[out, in] (+)= dy^T x, or dW[in, out] (+)= x^T dy */
static tp_status weight_gradient(const struct linear *l, const struct operands *o,
                                 struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < parts_of(l) && !st; i++) {
        struct part w = part_of(l, i);
        const char *dy_part = o->dy + w.at * dtype_bytes(l->type);
        const struct gemm g = { .trans_a = true,
                                .m = l->in_out ? l->in : w.n,
                                .n = l->in_out ? w.n : l->in,
                                .k = o->rows,
                                .a = l->in_out ? o->x : dy_part,
                                .lda = l->in_out ? l->in : l->out,
                                .b = l->in_out ? dy_part : o->x,
                                .ldb = l->in_out ? l->out : l->in,
                                .c = w.grad,
                                .ldc = l->in_out ? w.n : l->in,
                                .alpha = 1,
                                .beta = o->add ? 1 : 0,
                                .type = l->type };

        st = gemm(&g, err);
    }
    return st;
}

/* ---- shards ---- */

typedef tp_status (*product_fn)(const struct linear *l, const struct operands *o,
                                struct tp_err *err);

int64_t linear_shard_out(const struct linear *l, int shard)
{
    int64_t left = l->all_out - shard * l->out;

    if (!l->all_out || left > l->out)
        return l->out;
    return left > 0 ? left : 0;
}

/* Shard s as a layer of its own. */
static struct linear shard_of(const struct linear *l, int s)
{
    struct linear one = *l;

    one.weight = (const char *)l->weight + s * l->stride * dtype_bytes(l->type);
    one.grad += s * l->stride;
    one.out = linear_shard_out(l, s);
    return one;
}

struct work {
    const struct linear *l;
    const struct operands *o;
    product_fn fn;
    struct tp_err *err;
    atomic_int failed; /* the first failure's message is kept */
};

static void shard_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct work *w = ctx;

    (void)thread;
    for (int64_t s = lo; s < hi; s++) {
        struct linear one = shard_of(w->l, (int)s);
        struct operands o = *w->o;
        struct tp_err err = { 0 };

        o.to = o.to ? o.to + s * o.to_step : NULL;
        o.dy = o.dy ? o.dy + s * o.dy_step : NULL;
        o.x = o.x ? o.x + s * o.x_step : NULL;
        if (w->fn(&one, &o, &err) && !atomic_exchange(&w->failed, 1))
            *w->err = err;
    }
}

/* Every shard's product, by one thread each; with one part that is not a shard, by all. */
static tp_status run(product_fn fn, const struct linear *l, const struct operands *o,
                     struct tp_err *err)
{
    struct work w = { .l = l, .o = o, .fn = fn, .err = err };

    if (!l->shards)
        return fn(l, o, err);
    kernels_each(l->shards, shard_range, &w);
    return atomic_load(&w.failed) ? err->status : TP_OK;
}

/* Where shards put what is to be added up to `out`. */
static float *parts_for(const struct linear *l, float *out)
{
    return l->shards > 1 ? l->sums : out;
}

static void add_parts(const struct linear *l, float *out, int64_t n)
{
    if (l->shards > 1)
        shards_sum(out, l->sums, l->shards, n, n);
}

/* ---- biases ---- */

void linear_bias_add(const struct linear *l, float *y, int64_t rows)
{
    for (int s = 0; l->bias && (s == 0 || s < l->shards); s++)
        bias_add(y + s * rows * l->out, l->bias + s * l->bias_stride, rows, l->out);
}

struct bias_work {
    const struct linear *l;
    const char *dy;
    int64_t rows;
    float *workspace;
};

static void bias_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct bias_work *w = ctx;
    const struct linear *l = w->l;
    int64_t step = w->rows * l->out * dtype_bytes(l->type), room = 2 * l->out;

    for (int64_t s = lo; s < hi; s++)
        bias_gradient(l->bias_grad + s * l->bias_stride, w->dy + s * step, l->type, w->rows, l->out,
                      w->workspace + thread * room);
}

void linear_bias_backward(const struct linear *l, const void *dy, int64_t rows, float *workspace)
{
    struct bias_work w = { l, dy, rows, workspace };

    if (l->bias_grad && l->shards)
        kernels_each(l->shards, bias_range, &w);
    else if (l->bias_grad)
        bias_range(&w, 0, 1, 0);
}

/* ---- over ranks ---- */

static tp_status sum_over_ranks(const struct linear *l, float *x, int64_t n, struct tp_err *err)
{
    if (!l->tp || comm_size(l->tp) == 1)
        return TP_OK;
    return comm_all_reduce(l->tp, x, n, COMM_F32, COMM_SUM, err);
}

/* Every rank's rows of x, [rows][width] of the layer's type, in l->whole. Halves of floats travel
 * as floats: nothing is computed with them. */
static tp_status gather_rows(const struct linear *l, const void *x, int64_t rows, int64_t width,
                             struct tp_err *err)
{
    int64_t floats = rows * width * dtype_bytes(l->type) / (int64_t)sizeof(float);

    return comm_all_gather(l->tp, l->whole, x, floats / comm_size(l->tp), COMM_F32, err);
}

tp_status linear_column_forward(const struct linear *l, float *y, const void *x, int64_t rows,
                                struct tp_err *err)
{
    struct operands o = {
        .to = y, .to_step = rows * l->out, .x = l->whole ? (const void *)l->whole : x, .rows = rows
    };
    tp_status st = l->whole ? gather_rows(l, x, rows, l->in, err) : TP_OK;

    return st ? st : run(product, l, &o, err);
}

/* Sums of dX are done before W's gradient, which needs nothing of them. */
tp_status linear_column_backward(const struct linear *l, float *dx, const void *dy, const void *x,
                                 int64_t rows, bool add, struct tp_err *err)
{
    float *out = l->whole ? l->whole : dx;
    struct operands o = { .to = parts_for(l, out),
                          .to_step = rows * l->in,
                          .dy = dy,
                          .dy_step = rows * l->out * dtype_bytes(l->type),
                          .rows = rows,
                          .add = add };
    tp_status st;

    if ((st = run(input_gradient, l, &o, err)))
        return st;
    add_parts(l, out, rows * l->in);
    if (!l->whole)
        st = sum_over_ranks(l, dx, rows * l->in, err);
    else if (!(st = comm_reduce_scatter(l->tp, dx, l->whole, rows * l->in / comm_size(l->tp),
                                        COMM_F32, err)))
        st = gather_rows(l, x, rows, l->in, err);
    o.to = NULL;
    o.x = l->whole ? (const void *)l->whole : x;
    return st ? st : run(weight_gradient, l, &o, err);
}

tp_status linear_row_forward(const struct linear *l, float *y, const void *x, int64_t rows,
                             struct tp_err *err)
{
    float *out = l->whole ? l->whole : y;
    struct operands o = { .to = parts_for(l, out),
                          .to_step = rows * l->out,
                          .x = x,
                          .x_step = rows * l->in * dtype_bytes(l->type),
                          .rows = rows };
    tp_status st = run(product, l, &o, err);

    if (st)
        return st;
    add_parts(l, out, rows * l->out);
    if (l->whole)
        return comm_reduce_scatter(l->tp, y, l->whole, rows * l->out / comm_size(l->tp), COMM_F32,
                                   err);
    return sum_over_ranks(l, y, rows * l->out, err);
}

tp_status linear_row_backward(const struct linear *l, float *dx, const void *dy, const void *x,
                              int64_t rows, bool add, struct tp_err *err)
{
    struct operands o = { .to = dx,
                          .to_step = rows * l->in,
                          .dy = l->whole ? (const void *)l->whole : dy,
                          .x = x,
                          .x_step = rows * l->in * dtype_bytes(l->type),
                          .rows = rows,
                          .add = add };
    tp_status st = l->whole ? gather_rows(l, dy, rows, l->out, err) : TP_OK;

    if (!st)
        st = run(input_gradient, l, &o, err);
    o.to = NULL;
    return st ? st : run(weight_gradient, l, &o, err);
}
