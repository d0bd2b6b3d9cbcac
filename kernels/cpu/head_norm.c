/* kernels/cpu/head_norm.c - see kernels/head_norm.h. Heads are shared among threads as rows of
 * kernels/cpu/rms_norm.c are. */
#include "kernels/head_norm.h"

#include <math.h>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/rms_norm.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/* Where head i of all rows' heads begins. */
static int64_t head_at(int64_t i, int64_t heads, int64_t head_dim, int64_t ld)
{
    return i / heads * ld + i % heads * head_dim;
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct head_norm_forward *a = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i++) {
        float *y = (float *)a->y + head_at(i, a->heads, a->head_dim, a->ldy);
        float *x = (float *)a->x + head_at(i, a->heads, a->head_dim, a->ldx);

        if (!a->sums) {
            a->rstd[i] = rms_norm_row(y, DTYPE_F32, x, NULL, a->w, a->head_dim, a->eps);
            continue;
        }
        a->rstd[i] = (float)(1 / sqrt((double)a->sums[i] / (double)a->columns + (double)a->eps));
        rms_norm_row_scale(y, x, a->w, a->rstd[i], a->head_dim);
    }
}

tp_status cpu_run_head_norm_forward(struct device_queue *q, const struct head_norm_forward *a,
                                    struct tp_err *err)
{
    struct head_norm_forward rows = *a;
    tp_status st = cpu_run_wants_f32(a->type, "a norm of heads", err);

    if (!st)
        kernels_for(q, a->rows * a->heads, kernels_grain(a->head_dim * 8), forward_range, &rows);
    return st;
}

/* ---- backward ---- */

static KERNEL_CLONES void add_gradients(float *restrict d, float *restrict dw,
                                        const float *restrict x, const float *restrict w,
                                        float rstd, float along, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float dy = d[i];

        d[i] = rstd * (dy * w[i]) - along * x[i];
        dw[i] += dy * (x[i] * rstd);
    }
}

/* What head i gives to dw is added to dw. */
static void backward_head(const void *ctx, float *dw, int64_t i)
{
    const struct head_norm_backward *a = ctx;
    float *d = (float *)a->d + head_at(i, a->heads, a->head_dim, a->ldd);
    const float *x = (const float *)a->x + head_at(i, a->heads, a->head_dim, a->ldx);
    double s = (double)a->rstd[i];
    float along = a->sums ? (float)((double)a->sums[i] * s * s * s / (double)a->columns)
                          : rms_norm_row_along(d, x, a->w, a->rstd[i], a->head_dim);

    add_gradients(d, dw, x, a->w, a->rstd[i], along, a->head_dim);
}

tp_status cpu_run_head_norm_backward(struct device_queue *q, const struct head_norm_backward *a,
                                     struct tp_err *err)
{
    const struct column_sums dw = { .rows = a->rows * a->heads,
                                    .cols = a->head_dim,
                                    .row_bytes = a->head_dim * 16,
                                    .add_row = backward_head,
                                    .ctx = a,
                                    .out = { a->dw },
                                    .blocks = a->blocks,
                                    .block_step = a->block_step,
                                    .clear = true };
    tp_status st = cpu_run_wants_f32(a->type, "the gradient of a norm of heads", err);

    return st ? st : column_sums_add(q, &dw, err);
}

/* ---- sums of heads whose columns are cut ---- */

static void sums_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct head_norm_sums *a = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i++) {
        const float *x = (const float *)a->x + head_at(i, a->heads, a->head_dim, a->ldx);
        const float *d = (const float *)a->d;

        if (d)
            a->out[i] = (float)rms_norm_row_dot(d + head_at(i, a->heads, a->head_dim, a->ldd), x,
                                                a->w, a->head_dim);
        else
            a->out[i] = (float)rms_norm_row_squares(x, a->head_dim);
    }
}

tp_status cpu_run_head_norm_sums(struct device_queue *q, const struct head_norm_sums *a,
                                 struct tp_err *err)
{
    struct head_norm_sums rows = *a;
    tp_status st = cpu_run_wants_f32(a->type, "the sum of a norm of heads", err);

    if (!st)
        kernels_for(q, a->rows * a->heads, kernels_grain(a->head_dim * 8), sums_range, &rows);
    return st;
}
