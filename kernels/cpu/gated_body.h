/*
 * kernels/cpu/gated_body.h - one element of kernels/gated.h, compiled as C (gated.c) and as CUDA
 * (cuda/gated.cu). Both activations are f(x) = x s(x), where s is the logistic function of some
 * z(x): of x itself in silu, of 2 sqrt(2 / pi) (x + 0.044715 x^3) in gelu, which is GELU_TANH of
 * kernels/activation.h.
 */
#ifndef KERNELS_CPU_GATED_BODY_H
#define KERNELS_CPU_GATED_BODY_H

#include "kernels/cpu/activation_body.h"
#include "kernels/gated.h"

/* s(x). */
VEC_INLINE float gated_share(enum gated_kind kind, float x)
{
    return kind == GATED_SWIGLU ? 1.0f / (1.0f + vec_exp(-x)) : activation_tanh_share(x);
}

/* The derivative of f at x, from s = s(x): s + x s (1 - s) z'(x). */
VEC_INLINE float gated_slope(enum gated_kind kind, float x, float s)
{
    if (kind == GATED_SWIGLU)
        return s * (1.0f + x * (1.0f - s));
    return s + x * s * (1.0f - s) * (ACTIVATION_TWO_ROOT * (1.0f + 3 * 0.044715f * x * x));
}

#endif
