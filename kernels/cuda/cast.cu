/*
 * kernels/cuda/cast.cu - conversions in device memory, by the bit arithmetic of kernels/cpu/vec.h.
 */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

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
    *y = vec_from_f64(x);
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
    *y = vec_to_f64(widen(x));
}

enum { CAST_BLOCKS = 4 }; /* on a processor: 1024 threads of at most 64 registers */

/* Elements a thread converts at once: 16 bytes of the wider type, so that neighbouring lanes load
 * and store neighbouring words. With two words in a pack, a store would be half of each sector. */
template <typename D, typename S> struct cast_width {
    static constexpr int size = 16 / (int)(sizeof(D) > sizeof(S) ? sizeof(D) : sizeof(S));
};

template <typename D, typename S>
__global__ void __launch_bounds__(LAUNCH_THREADS, CAST_BLOCKS)
    cast_kernel(D *__restrict__ dst, const S *__restrict__ src, int64_t n, bool aligned)
{
    constexpr int N = cast_width<D, S>::size;
    int64_t done = 0;

    if (aligned) {
        const pack_memory<S, N> *from = reinterpret_cast<const pack_memory<S, N> *>(src);
        pack_memory<D, N> *to = reinterpret_cast<pack_memory<D, N> *>(dst);
#pragma unroll 4
        for (int64_t i = launch_thread(); i < n / N; i += launch_threads()) {
            pack_memory<S, N> a = from[i];
            pack_memory<D, N> b;
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
static void launch_cast(struct device_queue *q, const struct cast *a)
{
    bool aligned = pack_is_aligned(a->dst, a->src);
    int64_t blocks = a->n / cast_width<D, S>::size / LAUNCH_THREADS + 1;

    launch(q, "a cast", dim3(launch_blocks(q, blocks, CAST_BLOCKS)), cast_kernel<D, S>,
           static_cast<D *>(a->dst), static_cast<const S *>(a->src), a->n, aligned);
}

template <typename D> static bool cast_from(struct device_queue *q, const struct cast *a)
{
    switch (a->src_type) {
    case DTYPE_F32:
        launch_cast<D, float>(q, a);
        return true;
    case DTYPE_BF16:
        launch_cast<D, bf16>(q, a);
        return true;
    case DTYPE_F16:
        launch_cast<D, f16>(q, a);
        return true;
    case DTYPE_F64:
        launch_cast<D, double>(q, a);
        return true;
    default:
        return false;
    }
}

static bool cast_types(struct device_queue *q, const struct cast *a)
{
    switch (a->dst_type) {
    case DTYPE_F32:
        return cast_from<float>(q, a);
    case DTYPE_BF16:
        return cast_from<bf16>(q, a);
    case DTYPE_F16:
        return cast_from<f16>(q, a);
    case DTYPE_F64:
        return cast_from<double>(q, a);
    default:
        return false;
    }
}

void cuda_run_cast(struct device_queue *q, const struct cast *a)
{
    struct tp_err err;

    if (a->n == 0)
        return;
    if (a->dst_type == a->src_type) {
        device_copy(q, a->dst, a->src, a->n * dtype_bytes(a->dst_type));
    } else if (!cast_types(q, a)) {
        tp_fail(&err, TP_E_INTERNAL, "no conversion from %s to %s", dtype_name(a->src_type),
                dtype_name(a->dst_type));
        device_fail(q->device, &err);
    }
}
