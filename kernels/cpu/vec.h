/*
 * kernels/cpu/vec.h - what the vector loops of this folder share: compilation for several
 * processors, bf16 and f16 bit patterns, and an exponential that vectorises. CUDA uses
 * the conversions too.
 *
 * The loops are plain C that the compiler vectorises (`#pragma omp simd` where it needs a promise
 * or where a sum may be taken in lanes); this folder is compiled with -fno-math-errno
 * -fno-trapping-math, so that sqrtf and selects vectorise, and -ffp-contract=fast, so that a * b +
 * c is one rounding where the processor has it. Nothing depends on -ffast-math.
 */
#ifndef KERNELS_CPU_VEC_H
#define KERNELS_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* One binary runs on any x86-64 and uses AVX-512 or AVX2 where they are: the loader picks a clone.
 * Sanitizers cannot run in the loader's resolver; clang 14 has no target_clones by architecture. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(TP_SANITIZE)
#define KERNEL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KERNEL_CLONES
#endif

/* Before a loop whose only result is the maximum m. clang 14 does not take maxima in lanes, and
 * warns when told to. */
#ifdef __clang__
#define VEC_SIMD_MAX
#else
#define VEC_SIMD_MAX _Pragma("omp simd reduction(max : m)")
#endif

#ifdef __CUDACC__
#define VEC_INLINE static inline __host__ __device__ __attribute__((unused))
#else
#define VEC_INLINE static inline __attribute__((always_inline, unused))
#endif

VEC_INLINE uint32_t vec_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

VEC_INLINE float vec_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

VEC_INLINE float vec_from_bf16(uint16_t h)
{
    return vec_float((uint32_t)h << 16);
}

/* Nearest even; a NaN keeps its sign and leading payload and becomes quiet. */
VEC_INLINE uint16_t vec_to_bf16(float x)
{
    uint32_t u = vec_bits(x);
    uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    uint32_t nan = (u >> 16) | 0x40;

    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

/* Exact. Subnormals are made by a subtraction of two normal floats. */
VEC_INLINE float vec_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    uint32_t exponent = magnitude & 0x0f800000;
    uint32_t normal = magnitude + (exponent == 0x0f800000 ? 224u << 23 : 112u << 23);
    uint32_t small = vec_bits(vec_float(magnitude + (113u << 23)) - vec_float(113u << 23));

    return vec_float(sign | (exponent == 0 ? small : normal));
}

/* Nearest even; overflow is infinity; a NaN stays one. Subnormal results are rounded by adding
 * one half, whose last place is theirs. */
VEC_INLINE uint16_t vec_to_f16(float x)
{
    uint32_t u = vec_bits(x);
    uint32_t sign = (u >> 16) & 0x8000;
    uint32_t a = u & 0x7fffffff;
    uint32_t normal = (a - (112u << 23) + 0xfff + ((a >> 13) & 1)) >> 13;
    uint32_t small = vec_bits(vec_float(a < 0x38800000 ? a : 0) + 0.5f) - 0x3f000000;
    uint32_t large = a > 0x7f800000 ? 0x7e00 | ((a >> 13) & 0x3ff) : 0x7c00;
    uint32_t h = a >= 0x47800000 ? large : (a < 0x38800000 ? small : normal);

    return (uint16_t)(sign | h);
}

/* f64 to f32 and back as processors do it: a NaN keeps its sign and leading payload and becomes
 * quiet. GPUs make one of their own. */
VEC_INLINE float vec_from_f64(double x)
{
    uint64_t u;
    uint32_t nan;
    float y = (float)x;

    memcpy(&u, &x, sizeof u);
    nan = (uint32_t)(u >> 32 & 0x80000000) | 0x7fc00000 | (uint32_t)(u >> 29 & 0x7fffff);
    return x != x ? vec_float(nan) : y;
}

VEC_INLINE double vec_to_f64(float x)
{
    uint64_t u = vec_bits(x);
    uint64_t nan = (u & 0x80000000) << 32 | UINT64_C(0x7ff8000000000000) | (u & 0x7fffff) << 29;
    double y;

    memcpy(&y, &nan, sizeof y);
    return x != x ? y : (double)x;
}

/* f64 to f32, rounded to odd: toward zero, and the last bit set when anything was lost. A second
 * rounding, to a type at least two bits narrower, then gives what one rounding would have (Boldo
 * and Melquiond 2008). */
VEC_INLINE float vec_odd_from_f64(double x)
{
    float y = vec_from_f64(x);
    double back = y;
    uint32_t bits = vec_bits(y);
    uint32_t away = fabs(back) > fabs(x) ? 1 : 0;
    uint32_t odd = (bits - away) | 1;

    return vec_float(back == x || x != x ? bits : odd);
}

/*
 * e^x to within 1.01 units in the last place, subnormal results included; 0, infinity and NaN as
 * expf. x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q by a minimax fit of degree 4
 * (relative error of e^r 2^-28); 2^n in two factors, as n reaches -150 and 128.
 */
VEC_INLINE float vec_exp(float x)
{
    const float magic = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits */
    float c = x < -104.0f ? -104.0f : x;
    c = c > 89.0f ? 89.0f : c;
    float shifted = c * 0x1.715476p0f + magic;
    float n = shifted - magic;
    float r = c - n * 0x1.62ep-1f; /* ln 2 in two parts: n times the first is exact */
    r = r - n * 0x1.0bfbe8p-15f;
    float q = 0x1.6a23dp-10f;
    q = q * r + 0x1.123a2p-7f;
    q = q * r + 0x1.5558f2p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    float y = q * (r * r) + r;
    uint32_t k = vec_bits(shifted) - 0x4b400000;
    uint32_t half = (uint32_t)((int32_t)k >> 1);

    y = y + 1.0f;
    return y * vec_float((half + 127) << 23) * vec_float((k - half + 127) << 23);
}

/*
 * tanh x to within 3 units in the last place, and NaN as tanhf. Near 0, where the exponential would
 * cancel, x + x^3 p(x^2), p by a minimax fit of degree 4 (relative error 2^-28).
 */
VEC_INLINE float vec_tanh(float x)
{
    float a = fabsf(x), z = x * x;
    float far = 1.0f - 2.0f / (1.0f + vec_exp(2.0f * a));
    float p = -0x1.825836p-8f;
    p = p * z + 0x1.54b89ap-6f;
    p = p * z - 0x1.b898dcp-5f;
    p = p * z + 0x1.1109aep-3f;
    p = p * z - 0x1.55553ep-2f;
    float near = x + x * (z * p);

    return a < 0.6f ? near : x < 0.0f ? -far : far;
}

#endif
