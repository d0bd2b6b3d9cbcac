/* kernels/cpu/gelu.c - see kernels/gelu.h. */
#include "kernels/gelu.h"

#include "kernels/cpu/gelu_body.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/* (1 + tanh z) / 2 is the logistic function of 2 z, which needs one exponential and cancels
 * nothing. */
#define GELU_TERMS                                                   \
    const float two_root = 1.5957691216057308f; /* 2 sqrt(2 / pi) */ \
    float x = u[i];                                                  \
    float s = 1.0f / (1.0f + vec_exp(-two_root * (x + 0.044715f * x * x * x)))

#define GELU_GRADIENT \
    GELU_TERMS;       \
    float d = s + x * s * (1.0f - s) * two_root * (1.0f + 3 * 0.044715f * x * x)

#define GELU_ERF_TERMS             \
    float x = u[i];                \
    float bell = gelu_erf_bell(x); \
    float s = gelu_erf_share(x, bell)

#define GELU_ERF_GRADIENT \
    GELU_ERF_TERMS;       \
    float d = gelu_erf_slope(x, s, bell)

static KERNEL_CLONES void forward_f32(float *restrict y, const float *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        GELU_TERMS;
        y[i] = x * s;
    }
}

static KERNEL_CLONES void erf_forward_f32(float *restrict y, const float *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        GELU_ERF_TERMS;
        y[i] = x * s;
    }
}

static KERNEL_CLONES void forward_bf16(uint16_t *restrict y, const float *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        GELU_TERMS;
        y[i] = vec_to_bf16(x * s);
    }
}

static KERNEL_CLONES void erf_forward_bf16(uint16_t *restrict y, const float *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        GELU_ERF_TERMS;
        y[i] = vec_to_bf16(x * s);
    }
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct gelu_forward *a = ctx;
    const float *u = a->u;

    (void)thread;
    if (a->type == DTYPE_F32)
        (a->kind == GELU_ERF ? erf_forward_f32 : forward_f32)((float *)a->y + lo, u + lo, hi - lo);
    else
        (a->kind == GELU_ERF ? erf_forward_bf16 : forward_bf16)((uint16_t *)a->y + lo, u + lo,
                                                                hi - lo);
}

tp_status cpu_run_gelu_forward(struct device_queue *q, const struct gelu_forward *a,
                               struct tp_err *err)
{
    struct gelu_forward range = *a;
    tp_status st = cpu_run_wants_f32(a->in_type, "GELU", err);

    if (!st)
        kernels_for(q, a->n, kernels_grain(12), forward_range, &range);
    return st;
}

/* du may be u: each element is read before it is written, and no other. */
static KERNEL_CLONES void backward_f32(float *du, const float *dy, const float *u, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        GELU_GRADIENT;
        du[i] = dy[i] * d;
    }
}

static KERNEL_CLONES void erf_backward_f32(float *du, const float *dy, const float *u, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        GELU_ERF_GRADIENT;
        du[i] = dy[i] * d;
    }
}

static KERNEL_CLONES void backward_bf16(uint16_t *restrict du, const float *restrict dy,
                                        const float *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        GELU_GRADIENT;
        du[i] = vec_to_bf16(dy[i] * d);
    }
}

static KERNEL_CLONES void erf_backward_bf16(uint16_t *restrict du, const float *restrict dy,
                                            const float *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        GELU_ERF_GRADIENT;
        du[i] = vec_to_bf16(dy[i] * d);
    }
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct gelu_backward *a = ctx;
    const float *dy = a->dy, *u = a->u;

    (void)thread;
    if (a->type == DTYPE_F32)
        (a->kind == GELU_ERF ? erf_backward_f32 : backward_f32)((float *)a->du + lo, dy + lo,
                                                                u + lo, hi - lo);
    else
        (a->kind == GELU_ERF ? erf_backward_bf16 : backward_bf16)((uint16_t *)a->du + lo, dy + lo,
                                                                  u + lo, hi - lo);
}

tp_status cpu_run_gelu_backward(struct device_queue *q, const struct gelu_backward *a,
                                struct tp_err *err)
{
    struct gelu_backward range = *a;
    tp_status st = cpu_run_wants_f32(a->in_type, "GELU", err);

    if (!st)
        kernels_for(q, a->n, kernels_grain(20), backward_range, &range);
    return st;
}
