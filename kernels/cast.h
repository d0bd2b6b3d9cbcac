/*
 * kernels/cast.h - conversions between element types. Conversions to a narrower type round to
 * nearest even. NaN stays NaN, and overflow becomes infinity.
 */
#ifndef KERNELS_CAST_H
#define KERNELS_CAST_H

#include <stdint.h>

#include "layout/dtype.h"

/* dst[i] = src[i]; f32, bf16, f16 and f64 in any combination (same type: a copy). Buffers do not
 * overlap and need no alignment beyond their element's. */
struct cast {
    void *dst;
    enum dtype dst_type;
    const void *src;
    enum dtype src_type;
    int64_t n;
};

/* The same without a queue: the calling thread does it at once, on host memory. */
void cast(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, int64_t n);

#endif
