/* trainer/tensor/parallel_linear.c - see trainer/tensor/parallel_linear.h. */
#include "trainer/tensor/parallel_linear.h"

#include <stddef.h>

#include "trainer/tensor/linear_product.h"

/* ---- biases ---- */

void linear_bias_add(const struct linear *l, float *y, int64_t rows)
{
    for (int s = 0; l->bias && (s == 0 || s < l->shards); s++)
        l->k->ops->bias_add(l->k->queue, &(struct bias_add){ .x = y + s * rows * l->out,
                                                             .bias = l->bias + s * l->bias_stride,
                                                             .rows = rows,
                                                             .cols = l->out });
}

void linear_bias_backward(const struct linear *l, const void *dy, int64_t rows)
{
    const struct bias_gradient a = { .dbias = l->bias_grad,
                                     .dy = dy,
                                     .type = l->type,
                                     .rows = rows,
                                     .cols = l->out,
                                     .count = l->shards,
                                     .dbias_step = l->bias_stride,
                                     .dy_step = rows * l->out };

    if (l->bias_grad)
        l->k->ops->bias_gradient(l->k->queue, &a);
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
    struct linear_operands o = {
        .to = y, .to_step = rows * l->out, .x = l->whole ? (const void *)l->whole : x, .rows = rows
    };
    tp_status st = l->whole ? gather_rows(l, x, rows, l->in, err) : TP_OK;

    if (!st)
        linear_output(l, &o);
    return st;
}

/* Sums of dX are done before W's gradient, which needs nothing of them. */
tp_status linear_column_backward(const struct linear *l, float *dx, const void *dy, const void *x,
                                 int64_t rows, bool add, struct tp_err *err)
{
    float *out = l->whole ? l->whole : dx;
    struct linear_operands o = { .to = linear_parts_for(l, out),
                                 .to_step = rows * l->in,
                                 .dy = dy,
                                 .dy_step = rows * l->out,
                                 .rows = rows,
                                 .add = add };
    tp_status st;

    linear_input_gradient(l, &o);
    linear_add_parts(l, out, rows * l->in);
    if (!l->whole)
        st = sum_over_ranks(l, dx, rows * l->in, err);
    else if (!(st = comm_reduce_scatter(l->tp, dx, l->whole, rows * l->in / comm_size(l->tp),
                                        COMM_F32, err)))
        st = gather_rows(l, x, rows, l->in, err);
    if (st)
        return st;
    o.to = NULL;
    o.x = l->whole ? (const void *)l->whole : x;
    linear_weight_gradient(l, &o);
    return TP_OK;
}

tp_status linear_row_forward(const struct linear *l, float *y, const void *x, int64_t rows,
                             struct tp_err *err)
{
    float *out = l->whole ? l->whole : y;
    struct linear_operands o = { .to = linear_parts_for(l, out),
                                 .to_step = rows * l->out,
                                 .x = x,
                                 .x_step = rows * l->in,
                                 .rows = rows };

    linear_output(l, &o);
    linear_add_parts(l, out, rows * l->out);
    if (l->whole)
        return comm_reduce_scatter(l->tp, y, l->whole, rows * l->out / comm_size(l->tp), COMM_F32,
                                   err);
    return sum_over_ranks(l, y, rows * l->out, err);
}

tp_status linear_row_backward(const struct linear *l, float *dx, const void *dy, const void *x,
                              int64_t rows, bool add, struct tp_err *err)
{
    struct linear_operands o = { .to = dx,
                                 .to_step = rows * l->in,
                                 .dy = l->whole ? (const void *)l->whole : dy,
                                 .x = x,
                                 .x_step = rows * l->in,
                                 .rows = rows,
                                 .add = add };
    tp_status st = l->whole ? gather_rows(l, dy, rows, l->out, err) : TP_OK;

    if (st)
        return st;
    linear_input_gradient(l, &o);
    o.to = NULL;
    linear_weight_gradient(l, &o);
    return TP_OK;
}
