/* kernels/cpu/swiglu.c - see kernels/swiglu.h. */
#include "kernels/swiglu.h"

#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

struct swiglu {
    char *y; /* forward: the result; backward: dgate */
    char *dup;
    enum dtype type;
    const float *dy, *gate, *up;
    int64_t ld, cols;
};

VEC_INLINE float sigmoid(float x)
{
    return 1.0f / (1.0f + vec_exp(-x));
}

static KERNEL_CLONES void forward_f32(float *restrict y, const float *restrict gate,
                                      const float *restrict up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

static KERNEL_CLONES void forward_bf16(uint16_t *restrict y, const float *restrict gate,
                                       const float *restrict up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16(gate[i] * sigmoid(gate[i]) * up[i]);
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct swiglu *s = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        const float *gate = s->gate + r * s->ld, *up = s->up + r * s->ld;
        if (s->type == DTYPE_F32)
            forward_f32((float *)s->y + r * s->cols, gate, up, s->cols);
        else
            forward_bf16((uint16_t *)s->y + r * s->cols, gate, up, s->cols);
    }
}

void swiglu_forward(void *y, enum dtype type, const float *gate, const float *up, int64_t ld,
                    int64_t rows, int64_t cols)
{
    struct swiglu s = { .y = y, .type = type, .gate = gate, .up = up, .ld = ld, .cols = cols };

    kernels_for(rows, kernels_grain(cols * 12), forward_range, &s);
}

/* y = g s(g) u, so dy/du = g s and dy/dg = u s (1 + g (1 - s)). */
#define SWIGLU_GRADIENTS               \
    float g = gate[i], s = sigmoid(g); \
    float du = dy[i] * (g * s);        \
    float dg = dy[i] * up[i] * (s * (1.0f + g * (1.0f - s)))

/* dgate and dup may be gate and up: each element is read before it is written, and no other. */
static KERNEL_CLONES void backward_f32(float *dgate, float *dup, const float *dy, const float *gate,
                                       const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        SWIGLU_GRADIENTS;
        dgate[i] = dg;
        dup[i] = du;
    }
}

static KERNEL_CLONES void backward_bf16(uint16_t *restrict dgate, uint16_t *restrict dup,
                                        const float *restrict dy, const float *restrict gate,
                                        const float *restrict up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        SWIGLU_GRADIENTS;
        dgate[i] = vec_to_bf16(dg);
        dup[i] = vec_to_bf16(du);
    }
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct swiglu *s = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        const float *gate = s->gate + r * s->ld, *up = s->up + r * s->ld;
        const float *dy = s->dy + r * s->cols;
        int64_t at = r * s->ld;
        if (s->type == DTYPE_F32)
            backward_f32((float *)s->y + at, (float *)s->dup + at, dy, gate, up, s->cols);
        else
            backward_bf16((uint16_t *)s->y + at, (uint16_t *)s->dup + at, dy, gate, up, s->cols);
    }
}

void swiglu_backward(void *dgate, void *dup, enum dtype type, const float *dy, const float *gate,
                     const float *up, int64_t ld, int64_t rows, int64_t cols)
{
    struct swiglu s = { dgate, dup, type, dy, gate, up, ld, cols };

    kernels_for(rows, kernels_grain(cols * 20), backward_range, &s);
}
