/* kernels/cpu/rms_norm.c - see kernels/rms_norm.h and kernels/cpu/rms_norm.h. */
#include "kernels/cpu/rms_norm.h"

#include <math.h>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/* Sums over a row are taken in vector lanes of 256 elements and in double over those. */
enum { SUM_RUN = 256 };

static KERNEL_CLONES double add_and_square(float *x, const float *residual, int64_t n)
{
    double total = 0;

    for (int64_t lo = 0; lo < n; lo += SUM_RUN) {
        int64_t hi = n - lo < SUM_RUN ? n : lo + SUM_RUN;
        float sum = 0;
        if (residual) {
#pragma omp simd
            for (int64_t i = lo; i < hi; i++)
                x[i] += residual[i];
        }
#pragma omp simd reduction(+ : sum)
        for (int64_t i = lo; i < hi; i++)
            sum += x[i] * x[i];
        total += (double)sum;
    }
    return total;
}

static KERNEL_CLONES void scale_f32(float *restrict y, const float *restrict x,
                                    const float *restrict w, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * by * w[i];
}

static KERNEL_CLONES void scale_bf16(uint16_t *restrict y, const float *restrict x,
                                     const float *restrict w, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16(x[i] * by * w[i]);
}

float rms_norm_row(void *y, enum dtype type, float *x, const float *residual, const float *w,
                   int64_t n, float eps)
{
    double sum = add_and_square(x, residual, n);
    float by = (float)(1.0 / sqrt(sum / (double)n + (double)eps));

    if (type == DTYPE_F32)
        scale_f32(y, x, w, by, n);
    else
        scale_bf16(y, x, w, by, n);
    return by;
}

double rms_norm_row_squares(const float *x, int64_t n)
{
    return add_and_square((float *)x, NULL, n);
}

void rms_norm_row_scale(float *y, const float *x, const float *w, float rstd, int64_t n)
{
    scale_f32(y, x, w, rstd, n);
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct rms_norm_forward *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        int64_t at = r * a->cols;

        a->rstd[r] = rms_norm_row((char *)a->y + at * dtype_bytes(a->type), a->type, a->x + at,
                                  a->residual ? a->residual + at : NULL, a->w, a->cols, a->eps);
    }
}

tp_status cpu_run_rms_norm_forward(struct device_queue *q, const struct rms_norm_forward *a,
                                   struct tp_err *err)
{
    struct rms_norm_forward rows = *a;
    tp_status st = cpu_run_wants_no_bf16(a->block, "RMS norm", err);

    if (!st)
        kernels_for(q, a->rows, kernels_grain(a->cols * (a->residual ? 16 : 8)), forward_range,
                    &rows);
    return st;
}

/* ---- backward ---- */

static KERNEL_CLONES double dot3(const float *a, const float *b, const float *c, int64_t n)
{
    double total = 0;

    for (int64_t lo = 0; lo < n; lo += SUM_RUN) {
        int64_t hi = n - lo < SUM_RUN ? n : lo + SUM_RUN;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = lo; i < hi; i++)
            sum += a[i] * b[i] * c[i];
        total += (double)sum;
    }
    return total;
}

double rms_norm_row_dot(const float *dy, const float *x, const float *w, int64_t n)
{
    return dot3(dy, w, x, n);
}

float rms_norm_row_along(const float *dy, const float *x, const float *w, float rstd, int64_t n)
{
    double s = (double)rstd;

    return (float)(dot3(dy, w, x, n) * s * s * s / (double)n);
}

/* With n = x rstd: dx += rstd (dy w - n mean(dy w n)), dw += dy n. */
static KERNEL_CLONES void add_gradients(float *restrict dx, float *restrict dw,
                                        const float *restrict dy, const float *restrict x,
                                        const float *restrict w, float rstd, float along, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        dx[i] += rstd * (dy[i] * w[i]) - along * x[i];
        dw[i] += dy[i] * (x[i] * rstd);
    }
}

/* What row r gives to dw is added to dw. */
static void backward_row(const void *ctx, float *dw, int64_t r)
{
    const struct rms_norm_backward *a = ctx;
    int64_t at = r * a->cols;
    const float *dy = (const float *)a->dy + at, *x = (const float *)a->x + at;
    float along = rms_norm_row_along(dy, x, a->w, a->rstd[r], a->cols);

    add_gradients(a->dx + at, dw, dy, x, a->w, a->rstd[r], along, a->cols);
}

tp_status cpu_run_rms_norm_backward(struct device_queue *q, const struct rms_norm_backward *a,
                                    struct tp_err *err)
{
    const struct column_sums dw = { .rows = a->rows,
                                    .cols = a->cols,
                                    .row_bytes = a->cols * 16,
                                    .add_row = backward_row,
                                    .ctx = a,
                                    .out = { a->dw },
                                    .blocks = a->blocks,
                                    .block_step = a->block_step,
                                    .clear = true };
    tp_status st = cpu_run_wants_f32(a->dy_type, "the gradient of RMS norm", err);

    st = st ? st : cpu_run_wants_no_bf16(a->rounded, "the gradient of RMS norm", err);
    st = st ? st : cpu_run_wants_f32(a->x_type, "the gradient of RMS norm", err);
    return st ? st : column_sums_add(q, &dw, err);
}
