/* kernels/cpu/rope.c - see kernels/rope.h. */
#include "kernels/rope.h"

#include <math.h>

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

tp_status cpu_run_rope_table(struct device_queue *q, const struct rope_table *a, struct tp_err *err)
{
    int64_t half = a->rotary_dim / 2;

    (void)q;
    (void)err;
    for (int64_t i = 0; i < half; i++) {
        double frequency = pow(a->theta, -2.0 * (double)i / (double)a->rotary_dim);

        for (int64_t t = 0; t < a->n_positions; t++) {
            double angle = (double)(a->first + t) * frequency;

            a->cos_sin[t * a->rotary_dim + i] = (float)cos(angle);
            a->cos_sin[t * a->rotary_dim + half + i] = (float)sin(angle);
        }
    }
    return TP_OK;
}

static KERNEL_CLONES void rope_row(float *x, const float *cos_sin, const struct rope_apply *p)
{
    const int64_t half = p->rotary_dim / 2;
    const float sign = p->sign < 0 ? -1.0f : 1.0f;

    for (int64_t h = 0; h < p->heads; h++) {
        float *a = x + h * p->head_dim, *b = a + half;
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

    (void)thread;
    for (int64_t row = lo; row < hi; row++)
        rope_row((float *)a->x + row * a->stride, a->cos_sin + row % a->n_positions * a->rotary_dim,
                 a);
}

tp_status cpu_run_rope_apply(struct device_queue *q, const struct rope_apply *a, struct tp_err *err)
{
    struct rope_apply rows = *a;
    tp_status st = cpu_run_wants_f32(a->type, "a rotation", err);

    if (!st)
        kernels_for(q, a->rows, kernels_grain(a->heads * a->rotary_dim * 8), rope_range, &rows);
    return st;
}
