/* kernels/cpu/bias.c - see kernels/bias.h. */
#include "kernels/bias.h"

#include <string.h>

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

struct bias_gradient_work {
    struct bias_gradient a;
    float *room;
};

/* Add rows lo .. hi - 1 of one sum to the thread's part. */
static void sum_rows(const struct bias_gradient *a, const struct column_sums *s, int64_t lo,
                     int64_t hi)
{
    for (int64_t r = lo; r < hi; r++) {
        if (a->type == DTYPE_F32)
            add_f32(s->part, (const float *)a->dy + r * a->cols, a->cols);
        else
            add_bf16(s->part, (const uint16_t *)a->dy + r * a->cols, a->cols);
        column_sums_next(s, r, lo, hi);
    }
}

static void gradient_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct bias_gradient_work *w = ctx;
    const struct column_sums s = column_sums_of(w->room, w->a.cols, thread);

    sum_rows(&w->a, &s, lo, hi);
}

/* Sums lo .. hi - 1 of several, each by this thread alone. */
static void gradient_each(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct bias_gradient_work *w = ctx;
    const struct column_sums s = column_sums_of(w->room, w->a.cols, thread);

    for (int64_t i = lo; i < hi; i++) {
        struct bias_gradient one = w->a;

        one.dy = (const char *)one.dy + i * one.dy_step * dtype_bytes(one.type);
        one.dbias += i * one.dbias_step;
        column_sums_clear(s.total, s.cols, 1);
        sum_rows(&one, &s, 0, one.rows);
        if (one.clear)
            memset(one.dbias, 0, (size_t)one.cols * sizeof *one.dbias);
        add_f32(one.dbias, s.total, one.cols);
    }
}

tp_status cpu_run_bias_gradient(struct device_queue *q, const struct bias_gradient *a,
                                struct tp_err *err)
{
    struct bias_gradient_work w = { .a = *a };
    int team = kernels_team(q);
    tp_status st = column_sums_room(&w.room, q, a->cols, err);

    if (st)
        return st;
    if (a->count) {
        kernels_each(q, a->count, gradient_each, &w);
        return TP_OK;
    }
    column_sums_clear(w.room, a->cols, team);
    kernels_for(q, a->rows, kernels_grain(a->cols * 8), gradient_range, &w);
    column_sums_add(a->dbias, 0, a->cols, w.room, a->cols, team);
    return TP_OK;
}
