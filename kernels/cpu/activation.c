/* kernels/cpu/activation.c - see kernels/activation.h. */
#include "kernels/activation.h"

#include "kernels/cpu/activation_body.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"

/* The kind is a constant in each loop, so that the loop is compiled for one kind. */
#define WITH_CONSTANT(kind, loop, ...)               \
    do {                                             \
        if ((kind) == ACTIVATION_GELU_TANH)          \
            loop(ACTIVATION_GELU_TANH, __VA_ARGS__); \
        else if ((kind) == ACTIVATION_GELU_ERF)      \
            loop(ACTIVATION_GELU_ERF, __VA_ARGS__);  \
        else                                         \
            loop(ACTIVATION_RELU, __VA_ARGS__);      \
    } while (0)

static tp_status check_input(enum activation_kind kind, enum dtype type, struct tp_err *err)
{
    return cpu_run_wants_f32(type, kind == ACTIVATION_RELU ? "ReLU" : "GELU", err);
}

/* ---- forward ---- */

VEC_INLINE void forward_loop_f32(enum activation_kind kind, float *restrict y,
                                 const float *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = activation_value(kind, u[i]);
}

VEC_INLINE void forward_loop_bf16(enum activation_kind kind, uint16_t *restrict y,
                                  const float *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16(activation_value(kind, u[i]));
}

static KERNEL_CLONES void forward_f32(enum activation_kind kind, float *y, const float *u,
                                      int64_t n)
{
    WITH_CONSTANT(kind, forward_loop_f32, y, u, n);
}

static KERNEL_CLONES void forward_bf16(enum activation_kind kind, uint16_t *y, const float *u,
                                       int64_t n)
{
    WITH_CONSTANT(kind, forward_loop_bf16, y, u, n);
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct activation_forward *a = ctx;
    const float *u = a->u;

    (void)thread;
    if (a->type == DTYPE_F32)
        forward_f32(a->kind, (float *)a->y + lo, u + lo, hi - lo);
    else
        forward_bf16(a->kind, (uint16_t *)a->y + lo, u + lo, hi - lo);
}

tp_status cpu_run_activation_forward(struct device_queue *q, const struct activation_forward *a,
                                     struct tp_err *err)
{
    struct activation_forward range = *a;
    const int64_t grain = kernels_grain(a->kind == ACTIVATION_RELU ? 8 : 12);
    tp_status st = check_input(a->kind, a->in_type, err);

    if (!st)
        kernels_for(q, a->n, grain, forward_range, &range);
    return st;
}

/* ---- backward ---- */

/* du may be u: each element is read before it is written, and no other. */
VEC_INLINE void backward_loop_f32(enum activation_kind kind, float *du, const float *dy,
                                  const float *u, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        du[i] = activation_gradient(kind, dy[i], u[i]);
}

VEC_INLINE void backward_loop_bf16(enum activation_kind kind, uint16_t *restrict du,
                                   const float *restrict dy, const float *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        du[i] = vec_to_bf16(activation_gradient(kind, dy[i], u[i]));
}

static KERNEL_CLONES void backward_f32(enum activation_kind kind, float *du, const float *dy,
                                       const float *u, int64_t n)
{
    WITH_CONSTANT(kind, backward_loop_f32, du, dy, u, n);
}

static KERNEL_CLONES void backward_bf16(enum activation_kind kind, uint16_t *du, const float *dy,
                                        const float *u, int64_t n)
{
    WITH_CONSTANT(kind, backward_loop_bf16, du, dy, u, n);
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct activation_backward *a = ctx;
    const float *dy = a->dy, *u = a->u;

    (void)thread;
    if (a->type == DTYPE_F32)
        backward_f32(a->kind, (float *)a->du + lo, dy + lo, u + lo, hi - lo);
    else
        backward_bf16(a->kind, (uint16_t *)a->du + lo, dy + lo, u + lo, hi - lo);
}

tp_status cpu_run_activation_backward(struct device_queue *q, const struct activation_backward *a,
                                      struct tp_err *err)
{
    struct activation_backward range = *a;
    const int64_t grain = kernels_grain(a->kind == ACTIVATION_RELU ? 12 : 20);
    tp_status st = check_input(a->kind, a->in_type, err);

    if (!st)
        kernels_for(q, a->n, grain, backward_range, &range);
    return st;
}
