/* kernels/cpu/norm.c - see kernels/norm.h. */
#include "kernels/norm.h"

#include <math.h>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

struct norm_forward {
    char *y;
    enum dtype type;
    float *rstd, *x;
    const float *residual, *w;
    int64_t cols;
    float eps;
};

struct norm_backward {
    float *dx, *workspace;
    const float *dy, *x, *rstd, *w;
    int64_t cols;
};

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

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct norm_forward *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        int64_t at = r * a->cols;
        double sum = add_and_square(a->x + at, a->residual ? a->residual + at : NULL, a->cols);
        float by = (float)(1.0 / sqrt(sum / (double)a->cols + (double)a->eps));

        a->rstd[r] = by;
        if (a->type == DTYPE_F32)
            scale_f32((float *)a->y + at, a->x + at, a->w, by, a->cols);
        else
            scale_bf16((uint16_t *)a->y + at, a->x + at, a->w, by, a->cols);
    }
}

void norm_rms_forward(void *y, enum dtype type, float *rstd, float *x, const float *residual,
                      const float *w, int64_t rows, int64_t cols, float eps)
{
    struct norm_forward a = { .y = y,
                              .type = type,
                              .rstd = rstd,
                              .x = x,
                              .residual = residual,
                              .w = w,
                              .cols = cols,
                              .eps = eps };

    kernels_for(rows, kernels_grain(cols * (residual ? 16 : 8)), forward_range, &a);
}

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

/* With n = x rstd: dx += rstd (dy w - n mean(dy w n)), dw += dy n. */
static KERNEL_CLONES void backward_row(float *restrict dx, float *restrict dw,
                                       const float *restrict dy, const float *restrict x,
                                       const float *restrict w, float rstd, float along, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        dx[i] += rstd * (dy[i] * w[i]) - along * x[i];
        dw[i] += dy[i] * (x[i] * rstd);
    }
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct norm_backward *a = ctx;
    float *part = column_sums_part(a->workspace, a->cols, thread);

    for (int64_t r = lo; r < hi; r++) {
        int64_t at = r * a->cols;
        const float *dy = a->dy + at, *x = a->x + at;
        double s = (double)a->rstd[r];
        float along = (float)(dot3(dy, a->w, x, a->cols) * s * s * s / (double)a->cols);

        backward_row(a->dx + at, part, dy, x, a->w, a->rstd[r], along, a->cols);
        column_sums_next(a->workspace, a->cols, thread, r, lo, hi);
    }
}

void norm_rms_backward(float *dx, float *dw, const float *dy, const float *x, const float *rstd,
                       const float *w, int64_t rows, int64_t cols, float *workspace)
{
    struct norm_backward a = { dx, workspace, dy, x, rstd, w, cols };

    column_sums_begin(workspace, cols);
    kernels_for(rows, kernels_grain(cols * 16), backward_range, &a);
    column_sums_add(dw, workspace, cols, 0, cols);
}

int64_t norm_rms_workspace(int64_t cols)
{
    return column_sums_workspace(cols);
}
