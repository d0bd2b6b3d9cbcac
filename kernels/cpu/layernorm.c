/* kernels/cpu/layernorm.c - see kernels/layernorm.h. */
#include "kernels/layernorm.h"

#include <math.h>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/* Sums over a row are taken in vector lanes of 1024 elements and in double over those. */
enum { SUM_RUN = 1024 };

struct forward {
    const struct layernorm *a;
    char *y;
    enum dtype type;
    const float *residual, *x_bias;
};

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
    const struct forward *f = ctx;
    const struct layernorm *a = f->a;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        int64_t at = r * a->cols;
        float *x = a->x + at, mean, rstd;

        if (f->residual)
            add_to(x, f->residual + at, a->cols);
        if (f->x_bias)
            add_to(x, f->x_bias, a->cols);
        mean = (float)(sum_of(x, a->cols) / (double)a->cols);
        rstd =
            (float)(1.0 / sqrt(squares_about(x, mean, a->cols) / (double)a->cols + (double)a->eps));
        a->mean[r] = mean;
        a->rstd[r] = rstd;
        if (f->type == DTYPE_F32)
            normalise_f32((float *)f->y + at, x, a->w, a->b, mean, rstd, a->cols);
        else
            normalise_bf16((uint16_t *)f->y + at, x, a->w, a->b, mean, rstd, a->cols);
    }
}

void layernorm_forward(void *y, enum dtype type, const struct layernorm *a, const float *residual,
                       const float *x_bias)
{
    struct forward f = { a, y, type, residual, x_bias };

    kernels_for(a->rows, kernels_grain(a->cols * (residual ? 20 : 12)), forward_range, &f);
}

/* ---- backward ---- */

struct backward {
    const struct layernorm *a;
    float *dx, *workspace;
    const float *dy;
};

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

/* dx += rstd (g - mean(g) - n mean(g n)), dw += dy n, db += dy. */
static KERNEL_CLONES void backward_row(float *restrict dx, float *restrict dw, float *restrict db,
                                       const float *restrict dy, const float *restrict x,
                                       const float *restrict w, float mean, float rstd,
                                       float g_mean, float gn_mean, int64_t cols)
{
    for (int64_t i = 0; i < cols; i++) {
        float n = (x[i] - mean) * rstd;

        dx[i] += rstd * (dy[i] * w[i] - g_mean - n * gn_mean);
        dw[i] += dy[i] * n;
        db[i] += dy[i];
    }
}

/* dw and db are summed side by side. */
static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct backward *f = ctx;
    const struct layernorm *a = f->a;
    float *part = column_sums_part(f->workspace, 2 * a->cols, thread);

    for (int64_t r = lo; r < hi; r++) {
        int64_t at = r * a->cols;
        const float *dy = f->dy + at, *x = a->x + at;
        double sums[2], cols = (double)a->cols;

        row_sums(sums, dy, a->w, x, a->mean[r], a->rstd[r], a->cols);
        backward_row(f->dx + at, part, part + a->cols, dy, x, a->w, a->mean[r], a->rstd[r],
                     (float)(sums[0] / cols), (float)(sums[1] / cols), a->cols);
        column_sums_next(f->workspace, 2 * a->cols, thread, r, lo, hi);
    }
}

void layernorm_backward(float *dx, float *dw, float *db, const float *dy, const struct layernorm *a,
                        float *workspace)
{
    struct backward f = { a, dx, workspace, dy };

    column_sums_begin(workspace, 2 * a->cols);
    kernels_for(a->rows, kernels_grain(a->cols * 20), backward_range, &f);
    column_sums_add(dw, workspace, 2 * a->cols, 0, a->cols);
    column_sums_add(db, workspace, 2 * a->cols, a->cols, a->cols);
}

int64_t layernorm_workspace(int64_t cols)
{
    return column_sums_workspace(2 * cols);
}
