/*
 * kernels/cpu/activation_body.h - one element of kernels/activation.h, compiled as C (activation.c)
 * and as CUDA (cuda/activation.cu). GELU is y = x s(x). With erf, s is the distribution function of
 * the normal distribution. With tanh it is the logistic function of 2 sqrt(2 / pi) (x + 0.044715
 * x^3), which needs one exponential and cancels nothing.
 */
#ifndef KERNELS_CPU_ACTIVATION_BODY_H
#define KERNELS_CPU_ACTIVATION_BODY_H

#include "kernels/activation.h"
#include "kernels/cpu/vec.h"

#define ACTIVATION_TWO_ROOT 1.5957691216057308f /* 2 sqrt(2 / pi) */

VEC_INLINE float activation_tanh_share(float x)
{
    return 1.0f / (1.0f + vec_exp(-ACTIVATION_TWO_ROOT * (x + 0.044715f * x * x * x)));
}

/* The derivative of y at x, from s = s(x): s + x s'(x). */
VEC_INLINE float activation_tanh_slope(float x, float s)
{
    return s + x * s * (1.0f - s) * ACTIVATION_TWO_ROOT * (1.0f + 3 * 0.044715f * x * x);
}

/* e^(-x^2 / 2). */
VEC_INLINE float activation_erf_bell(float x)
{
    return vec_exp(-0.5f * x * x);
}

/*
 * s(x) from bell = activation_erf_bell(x). The tail below -|x| is bell t p(t) with t = 1 / (1 +
 * 0.35 |x|), p by a minimax fit of degree 8 for |x| up to 14, where the tail ends in subnormals
 * (relative error 2^-24). So a tail has its digits, and s has an absolute error of at most 2^-22.
 */
VEC_INLINE float activation_erf_share(float x, float bell)
{
    float t = 1.0f / (1.0f + 0.35f * fabsf(x));
    float p = -0x1.dd85a8p-6f;

    p = p * t + 0x1.26d9fap-3f;
    p = p * t - 0x1.05d960p-2f;
    p = p * t + 0x1.45fbfep-3f;
    p = p * t - 0x1.7a9cbep-6f;
    p = p * t + 0x1.b028c2p-4f;
    p = p * t + 0x1.ead5f2p-4f;
    p = p * t + 0x1.1e6fe6p-3f;
    p = p * t + 0x1.1df1d4p-3f;
    p = p * t * bell;
    return x < 0.0f ? p : 1.0f - p;
}

/* s'(x) is the bell's density. */
VEC_INLINE float activation_erf_slope(float x, float s, float bell)
{
    return s + x * (0.3989422804014327f * bell); /* 1 / sqrt(2 pi) */
}

/* y at u. A comparison with a NaN is false, so ReLU keeps it. */
VEC_INLINE float activation_value(enum activation_kind kind, float u)
{
    if (kind == ACTIVATION_RELU)
        return u <= 0.0f ? 0.0f : u;
    return u * (kind == ACTIVATION_GELU_ERF ? activation_erf_share(u, activation_erf_bell(u))
                                            : activation_tanh_share(u));
}

/* du from dy and u. */
VEC_INLINE float activation_gradient(enum activation_kind kind, float dy, float u)
{
    if (kind == ACTIVATION_RELU)
        return u <= 0.0f ? 0.0f : dy;
    if (kind == ACTIVATION_GELU_ERF) {
        const float bell = activation_erf_bell(u);

        return dy * activation_erf_slope(u, activation_erf_share(u, bell), bell);
    }
    return dy * activation_tanh_slope(u, activation_tanh_share(u));
}

#endif
