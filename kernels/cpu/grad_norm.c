/* kernels/cpu/grad_norm.c - see kernels/grad_norm.h. */
#include "kernels/grad_norm.h"

#include <math.h>

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

enum { SUM_PARTS = 64 }; /* the same partial sums for any number of threads */

struct grad_norm_work {
    const float *x;
    int64_t n;
    double part[SUM_PARTS];
};

static KERNEL_CLONES double squares(const float *x, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

static void part_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct grad_norm_work *w = ctx;
    int64_t each = w->n / SUM_PARTS;

    (void)thread;
    for (int64_t i = lo; i < hi; i++)
        w->part[i] = squares(w->x + each * i, i + 1 < SUM_PARTS ? each : w->n - each * i);
}

tp_status cpu_run_grad_norm_tensor(struct device_queue *q, const struct cpu_grad_norm_tensor *a,
                                   struct tp_err *err)
{
    struct grad_norm_work w = { .x = a->tensor.x, .n = a->tensor.n };
    double sum = 0;

    (void)err;
    kernels_for(q, SUM_PARTS, kernels_grain(w.n / SUM_PARTS * 4), part_range, &w);
    for (int i = 0; i < SUM_PARTS; i++)
        sum += w.part[i];
    *a->out = sum;
    return TP_OK;
}

static void rows_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct grad_norm_squares_rows *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++)
        a->out[r] = squares(a->x + r * a->cols, a->cols);
}

tp_status cpu_run_grad_norm_squares_rows(struct device_queue *q,
                                         const struct grad_norm_squares_rows *a, struct tp_err *err)
{
    struct grad_norm_squares_rows rows = *a;

    (void)err;
    kernels_for(q, a->rows, kernels_grain(a->cols * 4), rows_range, &rows);
    return TP_OK;
}

tp_status cpu_run_grad_norm_clip(struct device_queue *q, const struct grad_norm_clip *a,
                                 struct tp_err *err)
{
    double norm = sqrt(*a->squares);

    (void)q;
    (void)err;
    *a->norm = norm;
    *a->scale = a->clip > 0 && norm + 1e-6 > a->clip ? a->clip / (norm + 1e-6) : 1;
    return TP_OK;
}
