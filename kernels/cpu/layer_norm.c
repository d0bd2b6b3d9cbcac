/* kernels/cpu/layer_norm.c - see kernels/layer_norm.h. */
#include "kernels/layer_norm.h"

#include <math.h>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/* Sums over a row are taken in vector lanes of 1024 elements and in double over those. */
enum { SUM_RUN = 1024 };

static KERNEL_CLONES void add_to(float *restrict x, const float *restrict other, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += other[i];
}

static KERNEL_CLONES double sum_of(const float *x, int64_t n)
{
    double total = 0;

    for (int64_t lo = 0; lo < n; lo += SUM_RUN) {
        int64_t hi = n - lo < SUM_RUN ? n : lo + SUM_RUN;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = lo; i < hi; i++)
            sum += x[i];
        total += (double)sum;
    }
    return total;
}

static KERNEL_CLONES double squares_about(const float *x, float mean, int64_t n)
{
    double total = 0;

    for (int64_t lo = 0; lo < n; lo += SUM_RUN) {
        int64_t hi = n - lo < SUM_RUN ? n : lo + SUM_RUN;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = lo; i < hi; i++)
            sum += (x[i] - mean) * (x[i] - mean);
        total += (double)sum;
    }
    return total;
}

static KERNEL_CLONES void normalise_f32(float *restrict y, const float *restrict x,
                                        const float *restrict w, const float *restrict b,
                                        float mean, float rstd, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * rstd * w[i] + b[i];
}

static KERNEL_CLONES void normalise_bf16(uint16_t *restrict y, const float *restrict x,
                                         const float *restrict w, const float *restrict b,
                                         float mean, float rstd, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16((x[i] - mean) * rstd * w[i] + b[i]);
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct layer_norm_forward *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        int64_t at = r * a->cols;
        float *x = a->x + at, mean, rstd;

        if (a->residual)
            add_to(x, a->residual + at, a->cols);
        if (a->x_bias)
            add_to(x, a->x_bias, a->cols);
        mean = (float)(sum_of(x, a->cols) / (double)a->cols);
        rstd =
            (float)(1.0 / sqrt(squares_about(x, mean, a->cols) / (double)a->cols + (double)a->eps));
        a->mean[r] = mean;
        a->rstd[r] = rstd;
        if (a->type == DTYPE_F32)
            normalise_f32((float *)a->y + at, x, a->w, a->b, mean, rstd, a->cols);
        else
            normalise_bf16((uint16_t *)a->y + at, x, a->w, a->b, mean, rstd, a->cols);
    }
}

tp_status cpu_run_layer_norm_forward(struct device_queue *q, const struct layer_norm_forward *a,
                                     struct tp_err *err)
{
    struct layer_norm_forward rows = *a;
    tp_status st = cpu_run_wants_no_bf16(a->block, "layer norm", err);

    if (!st)
        kernels_for(q, a->rows, kernels_grain(a->cols * (a->residual ? 20 : 12)), forward_range,
                    &rows);
    return st;
}

/* ---- backward ---- */

/* With n = (x - mean) rstd and g = dy w: the sums of g and of g n. */
static KERNEL_CLONES void row_sums(double sums[2], const float *dy, const float *w, const float *x,
                                   float mean, float rstd, int64_t n)
{
    sums[0] = sums[1] = 0;
    for (int64_t lo = 0; lo < n; lo += SUM_RUN) {
        int64_t hi = n - lo < SUM_RUN ? n : lo + SUM_RUN;
        float s = 0, t = 0;
#pragma omp simd reduction(+ : s, t)
        for (int64_t i = lo; i < hi; i++) {
            s += dy[i] * w[i];
            t += dy[i] * w[i] * ((x[i] - mean) * rstd);
        }
        sums[0] += (double)s;
        sums[1] += (double)t;
    }
}

/* What a row's gradient is made from. */
struct layer_norm_row {
    const float *dy, *x, *w;
    float mean, rstd, g_mean, gn_mean;
};

/* dx += rstd (g - mean(g) - n mean(g n)), dw += dy n, db += dy. */
static KERNEL_CLONES void add_gradients(float *restrict dx, float *restrict dw, float *restrict db,
                                        const struct layer_norm_row *row, int64_t cols)
{
    const float *restrict dy = row->dy, *restrict x = row->x, *restrict w = row->w;
    const float mean = row->mean, rstd = row->rstd;
    const float g_mean = row->g_mean, gn_mean = row->gn_mean;

    for (int64_t i = 0; i < cols; i++) {
        float n = (x[i] - mean) * rstd;

        dx[i] += rstd * (dy[i] * w[i] - g_mean - n * gn_mean);
        dw[i] += dy[i] * n;
        db[i] += dy[i];
    }
}

/* What row r gives to dw and db, which is behind it, is added to them. */
static void backward_row(const void *ctx, float *dw_db, int64_t r)
{
    const struct layer_norm_backward *a = ctx;
    int64_t at = r * a->cols;
    struct layer_norm_row row = { .dy = (const float *)a->dy + at,
                                  .x = a->x + at,
                                  .w = a->w,
                                  .mean = a->mean[r],
                                  .rstd = a->rstd[r] };
    double sum[2], cols = (double)a->cols;

    row_sums(sum, row.dy, row.w, row.x, row.mean, row.rstd, a->cols);
    row.g_mean = (float)(sum[0] / cols);
    row.gn_mean = (float)(sum[1] / cols);
    add_gradients(a->dx + at, dw_db, dw_db + a->cols, &row, a->cols);
}

tp_status cpu_run_layer_norm_backward(struct device_queue *q, const struct layer_norm_backward *a,
                                      struct tp_err *err)
{
    const struct column_sums dw_db = { .rows = a->rows,
                                       .cols = 2 * a->cols,
                                       .row_bytes = a->cols * 20,
                                       .add_row = backward_row,
                                       .ctx = a,
                                       .out = { a->dw, a->db },
                                       .blocks = a->blocks,
                                       .block_step = a->block_step,
                                       .clear = true };
    tp_status st = cpu_run_wants_f32(a->dy_type, "the gradient of layer norm", err);

    st = st ? st : cpu_run_wants_no_bf16(a->rounded, "the gradient of layer norm", err);
    if (!st && a->dx_sum)
        st = tp_fail(err, TP_E_INTERNAL, "the gradient of layer norm on the CPU sums no dx");
    return st ? st : column_sums_add(q, &dw_db, err);
}
