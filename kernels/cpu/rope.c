/* kernels/cpu/rope.c - see kernels/rope.h. */
#include "kernels/rope.h"

#include <math.h>

#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

void rope_table(float *cos_sin, int64_t first, int64_t n_positions, int64_t head_dim, double theta)
{
    int64_t half = head_dim / 2;

    for (int64_t i = 0; i < half; i++) {
        double frequency = pow(theta, -2.0 * (double)i / (double)head_dim);
        for (int64_t t = 0; t < n_positions; t++) {
            double angle = (double)(first + t) * frequency;
            cos_sin[t * head_dim + i] = (float)cos(angle);
            cos_sin[t * head_dim + half + i] = (float)sin(angle);
        }
    }
}

struct rope {
    float *x;
    const float *cos_sin;
    int64_t n_positions, heads, head_dim, stride;
    float sign;
};

static KERNEL_CLONES void rope_row(float *x, const float *cos_sin, int64_t heads, int64_t half,
                                   float sign)
{
    for (int64_t h = 0; h < heads; h++) {
        float *a = x + h * 2 * half, *b = a + half;
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
            float c = cos_sin[i], s = sign * cos_sin[half + i];
            float a0 = a[i], b0 = b[i];
            a[i] = a0 * c - b0 * s;
            b[i] = b0 * c + a0 * s;
        }
    }
}

static void rope_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct rope *r = ctx;

    (void)thread;
    for (int64_t row = lo; row < hi; row++)
        rope_row(r->x + row * r->stride, r->cos_sin + row % r->n_positions * r->head_dim, r->heads,
                 r->head_dim / 2, r->sign);
}

void rope_apply(float *x, const float *cos_sin, int64_t rows, int64_t n_positions, int64_t heads,
                int64_t head_dim, int64_t stride, int sign)
{
    struct rope r = { x, cos_sin, n_positions, heads, head_dim, stride, sign < 0 ? -1.0f : 1.0f };

    kernels_for(rows, kernels_grain(heads * head_dim * 8), rope_range, &r);
}
