/* kernels/cpu/relu.c - see kernels/relu.h. */
#include "kernels/relu.h"

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/* Comparisons with a NaN are false, so it is kept. */
#define RELU(u)              ((u) <= 0.0f ? 0.0f : (u))
#define RELU_GRADIENT(dy, u) ((u) <= 0.0f ? 0.0f : (dy))

static KERNEL_CLONES void forward_f32(float *restrict y, const float *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = RELU(u[i]);
}

static KERNEL_CLONES void forward_bf16(uint16_t *restrict y, const float *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16(RELU(u[i]));
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct relu_forward *a = ctx;
    const float *u = a->u;

    (void)thread;
    if (a->type == DTYPE_F32)
        forward_f32((float *)a->y + lo, u + lo, hi - lo);
    else
        forward_bf16((uint16_t *)a->y + lo, u + lo, hi - lo);
}

tp_status cpu_run_relu_forward(struct device_queue *q, const struct relu_forward *a,
                               struct tp_err *err)
{
    struct relu_forward range = *a;
    tp_status st = cpu_run_wants_f32(a->in_type, "ReLU", err);

    if (!st)
        kernels_for(q, a->n, kernels_grain(8), forward_range, &range);
    return st;
}

/* du may be u: each element is read before it is written, and no other. */
static KERNEL_CLONES void backward_f32(float *du, const float *dy, const float *u, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        du[i] = RELU_GRADIENT(dy[i], u[i]);
}

static KERNEL_CLONES void backward_bf16(uint16_t *restrict du, const float *restrict dy,
                                        const float *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        du[i] = vec_to_bf16(RELU_GRADIENT(dy[i], u[i]));
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct relu_backward *a = ctx;
    const float *dy = a->dy, *u = a->u;

    (void)thread;
    if (a->type == DTYPE_F32)
        backward_f32((float *)a->du + lo, dy + lo, u + lo, hi - lo);
    else
        backward_bf16((uint16_t *)a->du + lo, dy + lo, u + lo, hi - lo);
}

tp_status cpu_run_relu_backward(struct device_queue *q, const struct relu_backward *a,
                                struct tp_err *err)
{
    struct relu_backward range = *a;
    tp_status st = cpu_run_wants_f32(a->in_type, "ReLU", err);

    if (!st)
        kernels_for(q, a->n, kernels_grain(12), backward_range, &range);
    return st;
}
