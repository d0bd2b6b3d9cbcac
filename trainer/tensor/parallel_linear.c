/* trainer/tensor/parallel_linear.c - see trainer/tensor/parallel_linear.h. */
#include "trainer/tensor/parallel_linear.h"

#include <stddef.h>

#include "trainer/tensor/linear_product.h"

/* ---- biases ---- */

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

static void sum_over_ranks(const struct linear *l, void *x, int64_t n)
{
    if (l->tp && comm_size(l->tp) > 1)
        comm_all_reduce(l->tp, l->k->queue, x, n, l->outer, COMM_SUM);
}

/* Every rank's rows of x, [rows][width] of the layer's type, in l->whole. */
static void gather_rows(const struct linear *l, const void *x, int64_t rows, int64_t width)
{
    comm_all_gather(l->tp, l->k->queue, l->whole, x, rows * width / comm_size(l->tp), l->type);
}

static void scatter_rows(const struct linear *l, void *x, int64_t rows, int64_t width)
{
    comm_reduce_scatter(l->tp, l->k->queue, x, l->whole, rows * width / comm_size(l->tp), l->outer);
}

const void *linear_gather(const struct linear *l, const void *x, int64_t rows, int64_t width)
{
    if (!l->whole)
        return x;
    gather_rows(l, x, rows, width);
    return l->whole;
}

void *linear_sum_place(const struct linear *l, void *y)
{
    return l->whole ? l->whole : y;
}

void linear_sum(const struct linear *l, void *y, int64_t rows, int64_t width)
{
    if (l->whole)
        scatter_rows(l, y, rows, width);
    else
        sum_over_ranks(l, y, rows * width);
}

/* ---- layers ---- */

void linear_uncut_forward(const struct linear *l, float *y, const void *x, int64_t rows)
{
    linear_output(l, &(struct linear_operands){ .result = y, .x = x, .rows = rows });
}

void linear_uncut_input_gradient(const struct linear *l, void *dx, const void *dy, int64_t rows)
{
    linear_input_gradient(l, &(struct linear_operands){
                                 .result = dx, .result_type = l->outer, .dy = dy, .rows = rows });
}

void linear_uncut_weight_gradient(const struct linear *l, const void *dy, const void *x,
                                  int64_t rows, bool add)
{
    linear_weight_gradient(l,
                           &(struct linear_operands){ .dy = dy, .x = x, .rows = rows, .add = add });
}

void linear_column_forward(const struct linear *l, void *y, const void *x, int64_t rows)
{
    const struct linear_operands o = { .result = y,
                                       .result_type = l->inner,
                                       .result_step = rows * l->out,
                                       .x = linear_gather(l, x, rows, l->in),
                                       .rows = rows,
                                       .with_bias = true };

    linear_output(l, &o);
}

void linear_column_gelu_forward(const struct linear *l, void *y, void *u, const void *x,
                                int64_t rows)
{
    const struct linear_operands o = { .result = y,
                                       .result_type = DTYPE_BF16,
                                       .x = linear_gather(l, x, rows, l->in),
                                       .rows = rows,
                                       .with_bias = true,
                                       .epilogue = GEMM_EPILOGUE_GELU,
                                       .gelu_input = u };

    linear_output(l, &o);
}

/* The sum of dX comes before W's gradient, which does not need it. */
void linear_column_backward(const struct linear *l, void *dx, const void *dy, const void *x,
                            int64_t rows, bool add)
{
    void *out = linear_sum_place(l, dx);
    struct linear_operands o = { .result = linear_parts_for(l, out),
                                 .result_type = l->outer,
                                 .result_step = rows * l->in,
                                 .dy = dy,
                                 .dy_step = rows * l->out,
                                 .rows = rows,
                                 .add = add };

    linear_input_gradient(l, &o);
    linear_add_parts(l, out, rows * l->in);
    linear_sum(l, dx, rows, l->in);
    o.result = NULL;
    o.x = linear_gather(l, x, rows, l->in);
    linear_weight_gradient(l, &o);
}

void linear_row_forward(const struct linear *l, void *y, const void *x, int64_t rows)
{
    void *out = linear_sum_place(l, y);
    struct linear_operands o = { .result = linear_parts_for(l, out),
                                 .result_type = l->outer,
                                 .result_step = rows * l->out,
                                 .x = x,
                                 .x_step = rows * l->in,
                                 .rows = rows };

    linear_output(l, &o);
    linear_add_parts(l, out, rows * l->out);
    linear_sum(l, y, rows, l->out);
}

static void row_backward(const struct linear *l, struct linear_operands *o, const void *dy)
{
    o->dy = linear_gather(l, dy, o->rows, l->out);
    linear_input_gradient(l, o);
    o->result = NULL;
    o->epilogue = GEMM_EPILOGUE_NONE;
    linear_weight_gradient(l, o);
}

void linear_row_backward(const struct linear *l, void *dx, const void *dy, const void *x,
                         int64_t rows, bool add)
{
    struct linear_operands o = { .result = dx,
                                 .result_type = l->inner,
                                 .result_step = rows * l->in,
                                 .x = x,
                                 .x_step = rows * l->in,
                                 .rows = rows,
                                 .add = add };

    row_backward(l, &o, dy);
}

void linear_row_gelu_backward(const struct linear *l, void *du, void *u, const void *dy,
                              const void *x, int64_t rows, bool add)
{
    struct linear_operands o = { .result = du,
                                 .result_type = DTYPE_BF16,
                                 .x = x,
                                 .rows = rows,
                                 .add = add,
                                 .epilogue = GEMM_EPILOGUE_DGELU,
                                 .gelu_input = u };

    row_backward(l, &o, dy);
}
