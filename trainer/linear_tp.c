/* trainer/linear_tp.c - see trainer/linear_tp.h. */
#include "trainer/linear_tp.h"

#include "kernels/gemm.h"

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

/* y[rows, out] = x[rows, in] W^T */
static tp_status product(const struct linear *l, float *y, const void *x, int64_t rows,
                         struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < parts_of(l) && !st; i++) {
        struct part w = part_of(l, i);
        const struct gemm g = { .trans_b = !l->in_out,
                                .m = rows,
                                .n = w.n,
                                .k = l->in,
                                .a = x,
                                .lda = l->in,
                                .b = w.weight,
                                .ldb = l->in_out ? w.n : l->in,
                                .c = y + w.at,
                                .ldc = l->out,
                                .alpha = 1,
                                .type = l->type };

        st = gemm(&g, err);
    }
    return st;
}

/* dx[rows, in] = dy[rows, out] W */
static tp_status input_gradient(const struct linear *l, float *dx, const void *dy, int64_t rows,
                                struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < parts_of(l) && !st; i++) {
        struct part w = part_of(l, i);
        const struct gemm g = { .trans_b = l->in_out,
                                .m = rows,
                                .n = l->in,
                                .k = w.n,
                                .a = (const char *)dy + w.at * dtype_bytes(l->type),
                                .lda = l->out,
                                .b = w.weight,
                                .ldb = l->in_out ? w.n : l->in,
                                .c = dx,
                                .ldc = l->in,
                                .alpha = 1,
                                .beta = i > 0 ? 1 : 0,
                                .type = l->type };

        st = gemm(&g, err);
    }
    return st;
}

/* dW[out, in] (+)= dy^T x, or dW[in, out] (+)= x^T dy */
static tp_status weight_gradient(const struct linear *l, const void *dy, const void *x,
                                 int64_t rows, bool add, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < parts_of(l) && !st; i++) {
        struct part w = part_of(l, i);
        const void *dy_part = (const char *)dy + w.at * dtype_bytes(l->type);
        const struct gemm g = { .trans_a = true,
                                .m = l->in_out ? l->in : w.n,
                                .n = l->in_out ? w.n : l->in,
                                .k = rows,
                                .a = l->in_out ? x : dy_part,
                                .lda = l->in_out ? l->in : l->out,
                                .b = l->in_out ? dy_part : x,
                                .ldb = l->in_out ? l->out : l->in,
                                .c = w.grad,
                                .ldc = l->in_out ? w.n : l->in,
                                .alpha = 1,
                                .beta = add ? 1 : 0,
                                .type = l->type };

        st = gemm(&g, err);
    }
    return st;
}

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
    tp_status st = l->whole ? gather_rows(l, x, rows, l->in, err) : TP_OK;

    return st ? st : product(l, y, l->whole ? l->whole : x, rows, err);
}

/* Sums of dX are done before W's gradient, which needs nothing of them. */
tp_status linear_column_backward(const struct linear *l, float *dx, const void *dy, const void *x,
                                 int64_t rows, bool add, struct tp_err *err)
{
    tp_status st;

    if ((st = input_gradient(l, l->whole ? l->whole : dx, dy, rows, err)))
        return st;
    if (!l->whole)
        st = sum_over_ranks(l, dx, rows * l->in, err);
    else if (!(st = comm_reduce_scatter(l->tp, dx, l->whole, rows * l->in / comm_size(l->tp),
                                        COMM_F32, err)))
        st = gather_rows(l, x, rows, l->in, err);
    return st ? st : weight_gradient(l, dy, l->whole ? l->whole : x, rows, add, err);
}

tp_status linear_row_forward(const struct linear *l, float *y, const void *x, int64_t rows,
                             struct tp_err *err)
{
    tp_status st = product(l, l->whole ? l->whole : y, x, rows, err);

    if (!st && l->whole)
        return comm_reduce_scatter(l->tp, y, l->whole, rows * l->out / comm_size(l->tp), COMM_F32,
                                   err);
    return st ? st : sum_over_ranks(l, y, rows * l->out, err);
}

tp_status linear_row_backward(const struct linear *l, float *dx, const void *dy, const void *x,
                              int64_t rows, bool add, struct tp_err *err)
{
    tp_status st = l->whole ? gather_rows(l, dy, rows, l->out, err) : TP_OK;

    if (l->whole)
        dy = l->whole;
    if (!st)
        st = input_gradient(l, dx, dy, rows, err);
    return st ? st : weight_gradient(l, dy, x, rows, add, err);
}
