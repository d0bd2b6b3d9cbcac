/* kernels/cpu/rope.c - see kernels/rope.h. */
#include "kernels/rope.h"

#include <math.h>

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

tp_status cpu_run_rope_table(struct device_queue *q, const struct rope_table *a, struct tp_err *err)
{
    int64_t half = a->head_dim / 2;

    (void)q;
    (void)err;
    for (int64_t i = 0; i < half; i++) {
        double frequency = pow(a->theta, -2.0 * (double)i / (double)a->head_dim);

        for (int64_t t = 0; t < a->n_positions; t++) {
            double angle = (double)(a->first + t) * frequency;

            a->cos_sin[t * a->head_dim + i] = (float)cos(angle);
            a->cos_sin[t * a->head_dim + half + i] = (float)sin(angle);
        }
    }
    return TP_OK;
}

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
    const struct rope_apply *a = ctx;
    float sign = a->sign < 0 ? -1.0f : 1.0f;

    (void)thread;
    for (int64_t row = lo; row < hi; row++)
        rope_row((float *)a->x + row * a->stride, a->cos_sin + row % a->n_positions * a->head_dim,
                 a->heads, a->head_dim / 2, sign);
}

tp_status cpu_run_rope_apply(struct device_queue *q, const struct rope_apply *a, struct tp_err *err)
{
    struct rope_apply rows = *a;
    tp_status st = cpu_run_wants_f32(a->type, "a rotation", err);

    if (!st)
        kernels_for(q, a->rows, kernels_grain(a->heads * a->head_dim * 8), rope_range, &rows);
    return st;
}
