/*
 * kernels/cuda/cast.cu - conversions in device memory, by the bit arithmetic of kernels/cpu/vec.h.
 */
#include "kernels/cpu/vec.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.cuh"

/* Element types as C++ types, so that the pairings are made by the compiler. */
struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

/* Any type to the f32 (f64 where that is the source and is kept) that the target is rounded from;
 * see kernels/cpu/cast.c: only f64 loses anything here, and it is rounded to odd. */
static __device__ inline float widen(float x)
{
    return x;
}
static __device__ inline float widen(bf16 x)
{
    return vec_from_bf16(x.bits);
}
static __device__ inline float widen(f16 x)
{
    return vec_from_f16(x.bits);
}
static __device__ inline float widen(double x)
{
    return vec_odd_from_f64(x);
}

template <typename S> static __device__ inline void convert(float *y, S x)
{
    *y = widen(x);
}
static __device__ inline void convert(float *y, double x)
{
    *y = (float)x;
}
template <typename S> static __device__ inline void convert(bf16 *y, S x)
{
    y->bits = vec_to_bf16(widen(x));
}
template <typename S> static __device__ inline void convert(f16 *y, S x)
{
    y->bits = vec_to_f16(widen(x));
}
template <typename S> static __device__ inline void convert(double *y, S x)
{
    *y = (double)widen(x);
}

enum { CAST_BLOCKS = 4 }; /* on a processor: 1024 threads of at most 64 registers */

/* Elements a thread converts at once: 16 bytes of a 2-byte type, fewer where registers are wide. */
template <typename D, typename S> struct pack_of {
    static constexpr int size = sizeof(D) == 8 || sizeof(S) == 8 ? 4 : 8;
};

/* N elements, moved in the widest words that they fill. */
template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) pack {
    T x[N];
};

template <typename D, typename S>
__global__ void __launch_bounds__(LAUNCH_THREADS, CAST_BLOCKS)
    cast_kernel(D *__restrict__ dst, const S *__restrict__ src, int64_t n, bool aligned)
{
    constexpr int N = pack_of<D, S>::size;
    int64_t done = 0;

    if (aligned) {
        const pack<S, N> *from = reinterpret_cast<const pack<S, N> *>(src);
        pack<D, N> *to = reinterpret_cast<pack<D, N> *>(dst);
        for (int64_t i = launch_thread(); i < n / N; i += launch_threads()) {
            pack<S, N> a = from[i];
            pack<D, N> b;
#pragma unroll
            for (int j = 0; j < N; j++)
                convert(&b.x[j], a.x[j]);
            to[i] = b;
        }
        done = n / N * N;
    }
    for (int64_t i = done + launch_thread(); i < n; i += launch_threads()) {
        D y;
        convert(&y, src[i]);
        dst[i] = y;
    }
}

template <typename D, typename S>
static void cast_launch(void *dst, const void *src, int64_t n, cudaStream_t stream)
{
    bool aligned =
        ((reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src)) & 15) == 0;

    cast_kernel<D, S>
        <<<launch_blocks(n / pack_of<D, S>::size + 1, CAST_BLOCKS), LAUNCH_THREADS, 0, stream>>>(
            static_cast<D *>(dst), static_cast<const S *>(src), n, aligned);
}

template <typename D>
static bool cast_from(void *dst, const void *src, enum dtype type, int64_t n, cudaStream_t stream)
{
    switch (type) {
    case DTYPE_F32:
        cast_launch<D, float>(dst, src, n, stream);
        return true;
    case DTYPE_BF16:
        cast_launch<D, bf16>(dst, src, n, stream);
        return true;
    case DTYPE_F16:
        cast_launch<D, f16>(dst, src, n, stream);
        return true;
    case DTYPE_F64:
        cast_launch<D, double>(dst, src, n, stream);
        return true;
    default:
        return false;
    }
}

static bool cast_types(void *dst, enum dtype dst_type, const void *src, enum dtype src_type,
                       int64_t n, cudaStream_t stream)
{
    switch (dst_type) {
    case DTYPE_F32:
        return cast_from<float>(dst, src, src_type, n, stream);
    case DTYPE_BF16:
        return cast_from<bf16>(dst, src, src_type, n, stream);
    case DTYPE_F16:
        return cast_from<f16>(dst, src, src_type, n, stream);
    case DTYPE_F64:
        return cast_from<double>(dst, src, src_type, n, stream);
    default:
        return false;
    }
}

tp_status cast_cuda(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, int64_t n,
                    cudaStream_t stream, struct tp_err *err)
{
    if (n == 0)
        return TP_OK;
    if (dst_type == src_type) {
        (void)cudaMemcpyAsync(dst, src, (size_t)(n * dtype_bytes(dst_type)),
                              cudaMemcpyDeviceToDevice, stream);
        return launch_status("a copy", err);
    }
    if (!cast_types(dst, dst_type, src, src_type, n, stream))
        return tp_fail(err, TP_E_INTERNAL, "no conversion from %s to %s", dtype_name(src_type),
                       dtype_name(dst_type));
    return launch_status("a conversion", err);
}
