/* kernels/cpu/loss.c - see kernels/loss.h. */
#include "kernels/loss.h"

#include <math.h>

#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

struct loss {
    const float *logits; /* loss_max; in loss_backward the exponentials */
    float *exps;         /* loss_sum_exp: logits, overwritten */
    char *dlogits;
    const float *row_max, *row_sum;
    float *max_out, *sum_out, *target_out;
    enum dtype type;
    const int32_t *targets;
    int64_t first, cols;
    float scale;
};

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

/* Column of row r's target in this shard, or -1. */
static int64_t target_column(const struct loss *l, int64_t r)
{
    int64_t c = l->targets[r] - l->first;

    return c >= 0 && c < l->cols ? c : -1;
}

static void max_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct loss *l = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++)
        l->max_out[r] = max_of(l->logits + r * l->cols, l->cols);
}

void loss_max(float *row_max, const float *logits, int64_t rows, int64_t cols)
{
    struct loss l = { .max_out = row_max, .logits = logits, .cols = cols };

    kernels_for(rows, kernels_grain(cols * 4), max_range, &l);
}

static void sum_exp_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct loss *l = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        float *row = l->exps + r * l->cols;
        int64_t c = target_column(l, r);

        l->target_out[r] = c >= 0 ? row[c] - l->row_max[r] : 0;
        l->sum_out[r] = (float)exp_sum(row, l->row_max[r], l->cols);
    }
}

void loss_sum_exp(float *row_sum, float *row_target, float *logits, const float *row_max,
                  const int32_t *targets, int64_t first, int64_t rows, int64_t cols)
{
    struct loss l = { .exps = logits,
                      .row_max = row_max,
                      .sum_out = row_sum,
                      .target_out = row_target,
                      .targets = targets,
                      .first = first,
                      .cols = cols };

    kernels_for(rows, kernels_grain(cols * 8), sum_exp_range, &l);
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct loss *l = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        const float *exps = l->logits + r * l->cols;
        float by = l->scale / l->row_sum[r];
        int64_t c = target_column(l, r);
        float at_target = c >= 0 ? l->scale * (exps[c] / l->row_sum[r] - 1.0f) : 0;

        if (l->type == DTYPE_F32) {
            float *d = (float *)l->dlogits + r * l->cols;
            scale_f32(d, exps, by, l->cols);
            if (c >= 0)
                d[c] = at_target;
        } else {
            uint16_t *d = (uint16_t *)l->dlogits + r * l->cols;
            scale_bf16(d, exps, by, l->cols);
            if (c >= 0)
                d[c] = vec_to_bf16(at_target);
        }
    }
}

void loss_backward(void *dlogits, enum dtype type, const float *exps, const float *row_sum,
                   const int32_t *targets, int64_t first, int64_t rows, int64_t cols, float scale)
{
    struct loss l = { .row_sum = row_sum,
                      .logits = exps,
                      .dlogits = dlogits,
                      .type = type,
                      .targets = targets,
                      .first = first,
                      .cols = cols,
                      .scale = scale };

    kernels_for(rows, kernels_grain(cols * 8), backward_range, &l);
}

double loss_total(const float *row_sum, const float *row_target, int64_t rows)
{
    double total = 0;

    for (int64_t r = 0; r < rows; r++)
        total += log((double)row_sum[r]) - (double)row_target[r];
    return total;
}
