/*
 * kernels/cpu/cast_body.h - the conversion of one element, compiled as C and as CUDA. The results
 * are those of kernels/cpu/cast.c.
 */
#ifndef KERNELS_CPU_CAST_BODY_H
#define KERNELS_CPU_CAST_BODY_H

#include "kernels/cpu/vec.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "layout/dtype.h"
#ifdef __cplusplus
}
#endif

/* Numbers at any address whose other accesses have another type. */
typedef uint16_t cast_u16 __attribute__((may_alias));
typedef float cast_f32 __attribute__((may_alias));
typedef double cast_f64 __attribute__((may_alias));

/* Element i as the f32 that a 2-byte type is rounded from: f64 is rounded to odd. */
VEC_INLINE float cast_load(const void *src, enum dtype from, int64_t i)
{
    switch (from) {
    case DTYPE_F32:
        return ((const cast_f32 *)src)[i];
    case DTYPE_BF16:
        return vec_from_bf16(((const cast_u16 *)src)[i]);
    case DTYPE_F16:
        return vec_from_f16(((const cast_u16 *)src)[i]);
    default:
        return vec_odd_from_f64(((const cast_f64 *)src)[i]);
    }
}

/* dst[i] = src[j]; the types are floating-point types. */
VEC_INLINE void cast_element(void *dst, enum dtype to, int64_t i, const void *src, enum dtype from,
                             int64_t j)
{
    switch (to) {
    case DTYPE_F32:
        ((cast_f32 *)dst)[i] =
            from == DTYPE_F64 ? vec_from_f64(((const cast_f64 *)src)[j]) : cast_load(src, from, j);
        break;
    case DTYPE_BF16:
        ((cast_u16 *)dst)[i] = vec_to_bf16(cast_load(src, from, j));
        break;
    case DTYPE_F16:
        ((cast_u16 *)dst)[i] = vec_to_f16(cast_load(src, from, j));
        break;
    default:
        ((cast_f64 *)dst)[i] = vec_to_f64(cast_load(src, from, j));
    }
}

#endif
