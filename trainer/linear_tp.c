/* trainer/linear_tp.c - see trainer/linear_tp.h. */
#include "trainer/linear_tp.h"

#include "kernels/gemm.h"

/* y[rows, out] = x[rows, in] W^T */
static tp_status product(const struct linear *l, float *y, const void *x, int64_t rows,
                         struct tp_err *err)
{
    const struct gemm g = { .trans_b = true,
                            .m = rows,
                            .n = l->out,
                            .k = l->in,
                            .a = x,
                            .lda = l->in,
                            .b = l->weight,
                            .ldb = l->in,
                            .c = y,
                            .ldc = l->out,
                            .alpha = 1,
                            .type = l->type };

    return gemm(&g, err);
}

/* dx[rows, in] = dy[rows, out] W */
static tp_status input_gradient(const struct linear *l, float *dx, const void *dy, int64_t rows,
                                struct tp_err *err)
{
    const struct gemm g = { .m = rows,
                            .n = l->in,
                            .k = l->out,
                            .a = dy,
                            .lda = l->out,
                            .b = l->weight,
                            .ldb = l->in,
                            .c = dx,
                            .ldc = l->in,
                            .alpha = 1,
                            .type = l->type };

    return gemm(&g, err);
}

/* dW[out, in] (+)= dy^T x */
static tp_status weight_gradient(const struct linear *l, const void *dy, const void *x,
                                 int64_t rows, bool add, struct tp_err *err)
{
    const struct gemm g = { .trans_a = true,
                            .m = l->out,
                            .n = l->in,
                            .k = rows,
                            .a = dy,
                            .lda = l->out,
                            .b = x,
                            .ldb = l->in,
                            .c = l->grad,
                            .ldc = l->in,
                            .alpha = 1,
                            .beta = add ? 1 : 0,
                            .type = l->type };

    return gemm(&g, err);
}

static tp_status sum_over_ranks(const struct linear *l, float *x, int64_t n, struct tp_err *err)
{
    if (comm_size(l->tp) == 1)
        return TP_OK;
    return comm_all_reduce(l->tp, x, n, COMM_F32, COMM_SUM, err);
}

tp_status linear_column_forward(const struct linear *l, float *y, const void *x, int64_t rows,
                                struct tp_err *err)
{
    return product(l, y, x, rows, err);
}

tp_status linear_column_backward(const struct linear *l, float *dx, const void *dy, const void *x,
                                 int64_t rows, bool add, struct tp_err *err)
{
    tp_status st;

    if ((st = input_gradient(l, dx, dy, rows, err)))
        return st;
    if ((st = sum_over_ranks(l, dx, rows * l->in, err)))
        return st;
    return weight_gradient(l, dy, x, rows, add, err);
}

tp_status linear_row_forward(const struct linear *l, float *y, const void *x, int64_t rows,
                             struct tp_err *err)
{
    tp_status st = product(l, y, x, rows, err);

    return st ? st : sum_over_ranks(l, y, rows * l->out, err);
}

tp_status linear_row_backward(const struct linear *l, float *dx, const void *dy, const void *x,
                              int64_t rows, bool add, struct tp_err *err)
{
    tp_status st = input_gradient(l, dx, dy, rows, err);

    return st ? st : weight_gradient(l, dy, x, rows, add, err);
}
