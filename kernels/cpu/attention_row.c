/* kernels/cpu/attention_row.c - see kernels/cpu/attention_row.h. */
#include "kernels/cpu/attention_row.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/vec.h"

enum { LANES = ATTENTION_LANES };

/* The n first scores of a row count: the rest of their vector is made -infinity, whose exponential
 * is 0; what lies beyond becomes 0 directly. Returns the number of whole vectors. */
VEC_INLINE int64_t mask_row(float *s, int64_t n, int64_t ld)
{
    int64_t vectors = (n + LANES - 1) / LANES;

    for (int64_t i = n; i < vectors * LANES; i++)
        s[i] = -INFINITY;
    memset(s + vectors * LANES, 0, (size_t)(ld - vectors * LANES) * sizeof *s);
    return vectors;
}

KERNEL_CLONES float attention_softmax_row(float *s, int64_t n, int64_t ld, float *max)
{
    int64_t lanes = mask_row(s, n, ld) * LANES; /* known to be whole vectors */
    float m = -INFINITY, sum = 0;

    VEC_SIMD_MAX
    for (int64_t i = 0; i < lanes; i++)
        m = s[i] > m ? s[i] : m;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < lanes; i++) {
        s[i] = vec_exp(s[i] - m);
        sum += s[i];
    }
    *max = m;
    return sum;
}

KERNEL_CLONES void attention_cap_row(float *restrict s, float *restrict slope, float cap, int64_t n)
{
    const float by = 1.0f / cap;

    for (int64_t i = 0; i < n; i++) {
        float t = vec_tanh(s[i] * by);

        s[i] = cap * t;
        slope[i] = 1.0f - t * t;
    }
}

KERNEL_CLONES void attention_multiply_row(float *restrict x, const float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= y[i];
}

KERNEL_CLONES void attention_round_row(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16(x[i]);
}

KERNEL_CLONES void attention_scale_row_f32(float *y, const float *x, float by, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * by;
}

KERNEL_CLONES void attention_scale_row_bf16(uint16_t *y, const float *x, float by, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16(x[i] * by);
}

KERNEL_CLONES void attention_merge_row(float *y, float keep, const float *x, float by, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = y[i] * keep + x[i] * by;
}

KERNEL_CLONES void attention_probability_row(float *s, float lse, int64_t n, int64_t ld)
{
    int64_t lanes = mask_row(s, n, ld) * LANES;

#pragma omp simd
    for (int64_t i = 0; i < lanes; i++)
        s[i] = vec_exp(s[i] - lse);
}

KERNEL_CLONES float attention_dot_f32(const float *x, const float *y, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

KERNEL_CLONES float attention_dot_bf16(const uint16_t *x, const uint16_t *y, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += vec_from_bf16(x[i]) * vec_from_bf16(y[i]);
    return sum;
}

KERNEL_CLONES void attention_score_gradient(float *dp, const float *p, float delta, int64_t vectors)
{
    int64_t lanes = vectors * LANES;

#pragma omp simd
    for (int64_t i = 0; i < lanes; i++)
        dp[i] = p[i] * (dp[i] - delta);
}
