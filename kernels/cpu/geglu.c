/* kernels/cpu/geglu.c - see kernels/geglu.h. */
#include "kernels/geglu.h"

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/* gelu(x) = x s(x), where s is the logistic function of 2 sqrt(2 / pi) (x + 0.044715 x^3). */
static const float TWO_ROOT = 1.5957691216057308f;

VEC_INLINE float gate_of(float x)
{
    return 1.0f / (1.0f + vec_exp(-TWO_ROOT * (x + 0.044715f * x * x * x)));
}

static KERNEL_CLONES void forward_f32(float *restrict y, const float *restrict gate,
                                      const float *restrict up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] * gate_of(gate[i]) * up[i];
}

static KERNEL_CLONES void forward_bf16(uint16_t *restrict y, const float *restrict gate,
                                       const float *restrict up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16(gate[i] * gate_of(gate[i]) * up[i]);
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct geglu_forward *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        const float *gate = a->gate + r * a->ld, *up = a->up + r * a->ld;

        if (a->type == DTYPE_F32)
            forward_f32((float *)a->y + r * a->cols, gate, up, a->cols);
        else
            forward_bf16((uint16_t *)a->y + r * a->cols, gate, up, a->cols);
    }
}

tp_status cpu_run_geglu_forward(struct device_queue *q, const struct geglu_forward *a,
                                struct tp_err *err)
{
    struct geglu_forward rows = *a;

    (void)err;
    kernels_for(q, a->rows, kernels_grain(a->cols * 12), forward_range, &rows);
    return TP_OK;
}

/* y = g s(g) u, so dy/du = g s and dy/dg = u (s + g s (1 - s) z'), where s is of z. */
#define GEGLU_GRADIENTS                                      \
    float g = gate[i], s = gate_of(g);                       \
    float slope = TWO_ROOT * (1.0f + 3 * 0.044715f * g * g); \
    float du = dy[i] * (g * s);                              \
    float dg = dy[i] * up[i] * (s + g * s * (1.0f - s) * slope)

/* dgate and dup may be gate and up: each element is read before it is written, and no other. */
static KERNEL_CLONES void backward_f32(float *dgate, float *dup, const float *dy, const float *gate,
                                       const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        GEGLU_GRADIENTS;
        dgate[i] = dg;
        dup[i] = du;
    }
}

static KERNEL_CLONES void backward_bf16(uint16_t *restrict dgate, uint16_t *restrict dup,
                                        const float *restrict dy, const float *restrict gate,
                                        const float *restrict up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        GEGLU_GRADIENTS;
        dgate[i] = vec_to_bf16(dg);
        dup[i] = vec_to_bf16(du);
    }
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct geglu_backward *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        int64_t at = r * a->ld;
        const float *gate = a->gate + at, *up = a->up + at, *dy = a->dy + r * a->cols;

        if (a->type == DTYPE_F32)
            backward_f32((float *)a->dgate + at, (float *)a->dup + at, dy, gate, up, a->cols);
        else
            backward_bf16((uint16_t *)a->dgate + at, (uint16_t *)a->dup + at, dy, gate, up,
                          a->cols);
    }
}

tp_status cpu_run_geglu_backward(struct device_queue *q, const struct geglu_backward *a,
                                 struct tp_err *err)
{
    struct geglu_backward rows = *a;

    (void)err;
    kernels_for(q, a->rows, kernels_grain(a->cols * 20), backward_range, &rows);
    return TP_OK;
}
