/*
 * kernels/cpu/gelu_body.h - one element of kernels/gelu.h's GELU_ERF, compiled as C (gelu.c) and as
 * CUDA (cuda/gelu.cu): y = x s(x), where s is the distribution function of the normal distribution.
 */
#ifndef KERNELS_CPU_GELU_BODY_H
#define KERNELS_CPU_GELU_BODY_H

#include "kernels/cpu/vec.h"

/* e^(-x^2 / 2). */
VEC_INLINE float gelu_erf_bell(float x)
{
    return vec_exp(-0.5f * x * x);
}

/*
 * s(x) from bell = gelu_erf_bell(x). The tail below -|x| is bell t p(t) with t = 1 / (1 + 0.35
 * |x|), p by a minimax fit of degree 8 for |x| up to 14, where the tail ends in subnormals
 * (relative error 2^-24). So a tail has its digits, and s has an absolute error of at most 2^-22.
 */
VEC_INLINE float gelu_erf_share(float x, float bell)
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

/* The derivative of y at x, from s = s(x): s + x s'(x), with the bell's density s'. */
VEC_INLINE float gelu_erf_slope(float x, float s, float bell)
{
    return s + x * (0.3989422804014327f * bell); /* 1 / sqrt(2 pi) */
}

#endif
