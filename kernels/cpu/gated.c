/* kernels/cpu/gated.c - see kernels/gated.h. */
#include "kernels/gated.h"

#include "kernels/cpu/gated_body.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"

/* ---- forward ---- */

VEC_INLINE void forward_loop_f32(enum gated_kind kind, float *restrict y,
                                 const float *restrict gate, const float *restrict up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] * gated_share(kind, gate[i]) * up[i];
}

VEC_INLINE void forward_loop_bf16(enum gated_kind kind, uint16_t *restrict y,
                                  const float *restrict gate, const float *restrict up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16(gate[i] * gated_share(kind, gate[i]) * up[i]);
}

/* The kind is a constant in each loop, so that the loop is compiled for one kind. */
static KERNEL_CLONES void forward_f32(enum gated_kind kind, float *y, const float *gate,
                                      const float *up, int64_t n)
{
    if (kind == GATED_SWIGLU)
        forward_loop_f32(GATED_SWIGLU, y, gate, up, n);
    else
        forward_loop_f32(GATED_GEGLU, y, gate, up, n);
}

static KERNEL_CLONES void forward_bf16(enum gated_kind kind, uint16_t *y, const float *gate,
                                       const float *up, int64_t n)
{
    if (kind == GATED_SWIGLU)
        forward_loop_bf16(GATED_SWIGLU, y, gate, up, n);
    else
        forward_loop_bf16(GATED_GEGLU, y, gate, up, n);
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct gated_forward *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        int64_t at = r * a->ld;
        const float *gate = (const float *)a->gate + at, *up = (const float *)a->up + at;

        if (a->type == DTYPE_F32)
            forward_f32(a->kind, (float *)a->y + r * a->cols, gate, up, a->cols);
        else
            forward_bf16(a->kind, (uint16_t *)a->y + r * a->cols, gate, up, a->cols);
    }
}

tp_status cpu_run_gated_forward(struct device_queue *q, const struct gated_forward *a,
                                struct tp_err *err)
{
    struct gated_forward rows = *a;
    tp_status st = cpu_run_wants_f32(a->in_type, "a gated activation", err);

    if (!st)
        kernels_for(q, a->count ? *a->count : a->rows, kernels_grain(a->cols * 12), forward_range,
                    &rows);
    return st;
}

/* ---- backward ---- */

/* y = g s(g) u, so dy/du = g s and dy/dg = u f'(g). */
#define GATED_GRADIENTS                          \
    float g = gate[i], s = gated_share(kind, g); \
    float du = dy[i] * (g * s);                  \
    float dg = dy[i] * up[i] * gated_slope(kind, g, s)

/* dgate and dup may be gate and up: each element is read before it is written, and no other. */
VEC_INLINE void backward_loop_f32(enum gated_kind kind, float *dgate, float *dup, const float *dy,
                                  const float *gate, const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        GATED_GRADIENTS;
        dgate[i] = dg;
        dup[i] = du;
    }
}

VEC_INLINE void backward_loop_bf16(enum gated_kind kind, uint16_t *restrict dgate,
                                   uint16_t *restrict dup, const float *restrict dy,
                                   const float *restrict gate, const float *restrict up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        GATED_GRADIENTS;
        dgate[i] = vec_to_bf16(dg);
        dup[i] = vec_to_bf16(du);
    }
}

static KERNEL_CLONES void backward_f32(enum gated_kind kind, float *dgate, float *dup,
                                       const float *dy, const float *gate, const float *up,
                                       int64_t n)
{
    if (kind == GATED_SWIGLU)
        backward_loop_f32(GATED_SWIGLU, dgate, dup, dy, gate, up, n);
    else
        backward_loop_f32(GATED_GEGLU, dgate, dup, dy, gate, up, n);
}

static KERNEL_CLONES void backward_bf16(enum gated_kind kind, uint16_t *dgate, uint16_t *dup,
                                        const float *dy, const float *gate, const float *up,
                                        int64_t n)
{
    if (kind == GATED_SWIGLU)
        backward_loop_bf16(GATED_SWIGLU, dgate, dup, dy, gate, up, n);
    else
        backward_loop_bf16(GATED_GEGLU, dgate, dup, dy, gate, up, n);
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct gated_backward *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        int64_t at = r * a->ld;
        const float *gate = (const float *)a->gate + at, *up = (const float *)a->up + at;
        const float *dy = (const float *)a->dy + r * a->cols;

        if (a->type == DTYPE_F32)
            backward_f32(a->kind, (float *)a->dgate + at, (float *)a->dup + at, dy, gate, up,
                         a->cols);
        else
            backward_bf16(a->kind, (uint16_t *)a->dgate + at, (uint16_t *)a->dup + at, dy, gate, up,
                          a->cols);
    }
}

tp_status cpu_run_gated_backward(struct device_queue *q, const struct gated_backward *a,
                                 struct tp_err *err)
{
    struct gated_backward rows = *a;
    tp_status st = cpu_run_wants_f32(a->in_type, "a gated activation", err);

    if (!st)
        kernels_for(q, a->count ? *a->count : a->rows, kernels_grain(a->cols * 20), backward_range,
                    &rows);
    return st;
}
