/* kernels/cpu/bias.c - see kernels/bias.h. */
#include "kernels/bias.h"

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

static KERNEL_CLONES void add_f32(float *restrict x, const float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

static KERNEL_CLONES void add_bf16(float *restrict x, const uint16_t *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += vec_from_bf16(y[i]);
}

static void add_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct bias_residual_add *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        if (a->residual)
            add_f32(a->x + r * a->cols, a->residual + r * a->cols, a->cols);
        if (a->bias)
            add_f32(a->x + r * a->cols, a->bias, a->cols);
    }
}

tp_status cpu_run_bias_residual_add(struct device_queue *q, const struct bias_residual_add *a,
                                    struct tp_err *err)
{
    struct bias_residual_add b = *a;
    tp_status st = cpu_run_wants_no_bf16(a->block, "a sum with a bias", err);

    if (!st)
        kernels_for(q, a->rows, kernels_grain(a->cols * 12), add_range, &b);
    return st;
}

/* ---- the gradient ---- */

/* Row number `row` of all sums. */
static void add_row(const void *ctx, float *sums, int64_t row)
{
    const struct bias_gradient *a = ctx;
    int64_t at = row / a->rows * a->dy_step + row % a->rows * a->cols;

    if (a->type == DTYPE_F32)
        add_f32(sums, (const float *)a->dy + at, a->cols);
    else
        add_bf16(sums, (const uint16_t *)a->dy + at, a->cols);
}

tp_status cpu_run_bias_gradient(struct device_queue *q, const struct bias_gradient *a,
                                struct tp_err *err)
{
    const struct column_sums dbias = { .rows = a->rows * (a->count ? a->count : 1),
                                       .cols = a->cols,
                                       .row_bytes = a->cols * 8,
                                       .add_row = add_row,
                                       .ctx = a,
                                       .out = { a->dbias },
                                       .blocks = a->count,
                                       .block_step = a->dbias_step,
                                       .clear = a->clear };

    return column_sums_add(q, &dbias, err);
}
