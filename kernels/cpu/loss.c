/* kernels/cpu/loss.c - see kernels/loss.h. */
#include "kernels/loss.h"

#include <math.h>

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

static KERNEL_CLONES float max_of(const float *x, int64_t n)
{
    float m = -INFINITY;
    VEC_SIMD_MAX
    for (int64_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

/* x = exp(x - shift) in place; their sum, in lanes of each 256 and double over those. */
static KERNEL_CLONES double exp_sum(float *x, float shift, int64_t n)
{
    double total = 0;

    for (int64_t lo = 0; lo < n; lo += 256) {
        int64_t hi = n - lo < 256 ? n : lo + 256;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = lo; i < hi; i++) {
            x[i] = vec_exp(x[i] - shift);
            sum += x[i];
        }
        total += (double)sum;
    }
    return total;
}

/* The same sum, and x stays. */
static KERNEL_CLONES double exp_sum_keep(const float *x, float shift, int64_t n)
{
    double total = 0;

    for (int64_t lo = 0; lo < n; lo += 256) {
        int64_t hi = n - lo < 256 ? n : lo + 256;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = lo; i < hi; i++)
            sum += vec_exp(x[i] - shift);
        total += (double)sum;
    }
    return total;
}

static KERNEL_CLONES void scale_f32(float *y, const float *x, float by, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * by;
}

static KERNEL_CLONES void scale_bf16(uint16_t *restrict y, const float *restrict x, float by,
                                     int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16(x[i] * by);
}

/* The derivative of a soft cap where its result is x. */
VEC_INLINE float cap_slope(float x, float by_cap)
{
    return 1.0f - x * by_cap * (x * by_cap);
}

/* As scale_f32 and scale_bf16, of exponentials of capped logits. y may be x. */
static KERNEL_CLONES void capped_f32(float *y, const float *x, const struct loss_backward *a,
                                     int64_t row)
{
    float by = a->scale / a->row_sum[row], shift = a->row_max[row], by_cap = 1.0f / a->cap;

#pragma omp simd
    for (int64_t i = 0; i < a->cols; i++)
        y[i] = vec_exp(x[i] - shift) * by * cap_slope(x[i], by_cap);
}

static KERNEL_CLONES void capped_bf16(uint16_t *restrict y, const float *restrict x,
                                      const struct loss_backward *a, int64_t row)
{
    float by = a->scale / a->row_sum[row], shift = a->row_max[row], by_cap = 1.0f / a->cap;

    for (int64_t i = 0; i < a->cols; i++)
        y[i] = vec_to_bf16(vec_exp(x[i] - shift) * by * cap_slope(x[i], by_cap));
}

/* Column of a target in this part of the vocabulary, or -1. */
static int64_t target_column(int32_t target, int64_t first, int64_t cols)
{
    int64_t c = target - first;

    return c >= 0 && c < cols ? c : -1;
}

static void max_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct loss_max *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        float m = max_of((const float *)a->logits + r * a->cols, a->cols);

        if (!a->merge || m > a->row_max[r])
            a->row_max[r] = m;
    }
}

tp_status cpu_run_loss_max(struct device_queue *q, const struct loss_max *a, struct tp_err *err)
{
    struct loss_max rows = *a;
    tp_status st = cpu_run_wants_f32(a->type, "the loss", err);

    if (!st)
        kernels_for(q, a->rows, kernels_grain(a->cols * 4), max_range, &rows);
    return st;
}

static void sum_exp_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct loss_sum_exp *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        float *row = (float *)a->logits + r * a->cols;
        int64_t c = target_column(a->targets[r], a->first, a->cols);

        a->row_target[r] = c >= 0 ? row[c] - a->row_max[r] : 0;
        a->row_sum[r] = (float)(a->cap > 0 ? exp_sum_keep(row, a->row_max[r], a->cols)
                                           : exp_sum(row, a->row_max[r], a->cols));
    }
}

tp_status cpu_run_loss_sum_exp(struct device_queue *q, const struct loss_sum_exp *a,
                               struct tp_err *err)
{
    struct loss_sum_exp rows = *a;
    tp_status st = cpu_run_wants_f32(a->type, "the loss", err);

    if (!st)
        kernels_for(q, a->rows, kernels_grain(a->cols * 8), sum_exp_range, &rows);
    return st;
}

/* The gradient of the target's logit: x is its exponential, or with a cap itself. */
static float target_gradient(const struct loss_backward *a, int64_t row, float x)
{
    if (a->cap > 0)
        return a->scale * (vec_exp(x - a->row_max[row]) / a->row_sum[row] - 1.0f) *
               cap_slope(x, 1.0f / a->cap);
    return a->scale * (x / a->row_sum[row] - 1.0f);
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct loss_backward *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        const float *exps = (const float *)a->logits + r * a->cols; /* logits, with a cap */
        float by = a->scale / a->row_sum[r];
        int64_t c = target_column(a->targets[r], a->first, a->cols);
        float at_target = c >= 0 ? target_gradient(a, r, exps[c]) : 0;

        if (a->type == DTYPE_F32) {
            float *d = (float *)a->dlogits + r * a->cols;

            if (a->cap > 0)
                capped_f32(d, exps, a, r);
            else
                scale_f32(d, exps, by, a->cols);
            if (c >= 0)
                d[c] = at_target;
        } else {
            uint16_t *d = (uint16_t *)a->dlogits + r * a->cols;

            if (a->cap > 0)
                capped_bf16(d, exps, a, r);
            else
                scale_bf16(d, exps, by, a->cols);
            if (c >= 0)
                d[c] = vec_to_bf16(at_target);
        }
    }
}

tp_status cpu_run_loss_backward(struct device_queue *q, const struct loss_backward *a,
                                struct tp_err *err)
{
    struct loss_backward rows = *a;
    tp_status st = cpu_run_wants_f32(a->logits_type, "the loss", err);

    if (!st)
        kernels_for(q, a->rows, kernels_grain(a->cols * 8), backward_range, &rows);
    return st;
}

tp_status cpu_run_loss_total(struct device_queue *q, const struct loss_total *a, struct tp_err *err)
{
    double total = 0;

    (void)q;
    (void)err;
    for (int64_t r = 0; r < a->rows; r++)
        total += log((double)a->row_sum[r]) - (double)a->row_target[r];
    *a->out = total;
    return TP_OK;
}
