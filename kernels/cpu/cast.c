/* kernels/cpu/cast.c - see kernels/cast.h. */
#include "kernels/cast.h"

#include <string.h>

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

enum { CHUNK = 1024 }; /* f32 elements that pass through the first-level cache */

static KERNEL_CLONES void widen_bf16(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = vec_from_bf16(src[i]);
}

static KERNEL_CLONES void widen_f16(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = vec_from_f16(src[i]);
}

static KERNEL_CLONES void narrow_bf16(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = vec_to_bf16(src[i]);
}

static KERNEL_CLONES void narrow_f16(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = vec_to_f16(src[i]);
}

static KERNEL_CLONES void f32_to_f64(double *restrict dst, const float *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = src[i];
}

static KERNEL_CLONES void f64_to_f32(float *restrict dst, const double *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = (float)src[i];
}

static KERNEL_CLONES void f64_to_f32_odd(float *restrict dst, const double *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = vec_odd_from_f64(src[i]);
}

/* n <= CHUNK elements of a type to f32; exact but from f64, which is rounded to odd. */
static void to_f32(float *dst, enum dtype type, const void *src, int64_t n)
{
    if (type == DTYPE_BF16)
        widen_bf16(dst, src, n);
    else if (type == DTYPE_F16)
        widen_f16(dst, src, n);
    else
        f64_to_f32_odd(dst, src, n);
}

static void from_f32(void *dst, enum dtype type, const float *src, int64_t n)
{
    if (type == DTYPE_BF16)
        narrow_bf16(dst, src, n);
    else if (type == DTYPE_F16)
        narrow_f16(dst, src, n);
    else
        f32_to_f64(dst, src, n);
}

static void cast_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct cast *c = ctx;
    int64_t dst_bytes = dtype_bytes(c->dst_type), src_bytes = dtype_bytes(c->src_type);
    char *dst = (char *)c->dst + lo * dst_bytes;
    const char *src = (const char *)c->src + lo * src_bytes;
    float chunk[CHUNK];

    (void)thread;
    if (c->dst_type == c->src_type) {
        memcpy(dst, src, (size_t)((hi - lo) * dst_bytes));
    } else if (c->src_type == DTYPE_F32) {
        from_f32(dst, c->dst_type, (const float *)src, hi - lo);
    } else if (c->dst_type == DTYPE_F32) {
        if (c->src_type == DTYPE_F64)
            f64_to_f32((float *)dst, (const double *)src, hi - lo);
        else
            to_f32((float *)dst, c->src_type, src, hi - lo);
    } else {
        for (int64_t i = 0; i < hi - lo; i += CHUNK) {
            int64_t n = hi - lo - i < CHUNK ? hi - lo - i : CHUNK;

            to_f32(chunk, c->src_type, src + i * src_bytes, n);
            from_f32(dst + i * dst_bytes, c->dst_type, chunk, n);
        }
    }
}

tp_status cpu_run_cast(struct device_queue *q, const struct cast *a, struct tp_err *err)
{
    struct cast c = *a;

    (void)err;
    kernels_for(q, a->n, kernels_grain(dtype_bytes(a->dst_type) + dtype_bytes(a->src_type)),
                cast_range, &c);
    return TP_OK;
}

void cast(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, int64_t n)
{
    struct cast c = { dst, dst_type, src, src_type, n };

    if (n > 0)
        cast_range(&c, 0, n, 0);
}
