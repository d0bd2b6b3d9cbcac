/*
 * kernels/cuda/pack.cuh - how kernels that are limited by memory move their elements: in packs of N
 * that are one load or store, PACK f32 of 16 bytes or PACK_BF16 bf16 of 16 bytes. Arithmetic is on
 * f32. Kernels are templates of N. With N = 1 they take arrays at any address.
 *
 * By Little's law 4.8 TB/s over 132 processors at a latency of 700 ns needs 25 KiB in flight on
 * each processor: 2048 threads with one pack, 1024 with two, 512 with four.
 */
#ifndef KERNELS_CUDA_PACK_CUH
#define KERNELS_CUDA_PACK_CUH

#include <type_traits>

#include "kernels/cuda/instruction.cuh"
#include "kernels/cuda/launch.cuh"

enum { PACK = 4, PACK_BF16 = 8 };

/* N elements, in registers. */
template <int N> struct pack {
    float x[N];
};

/* The packs of `count` arrays at one place. */
template <int N, int count> struct pack_set {
    struct pack<N> of[count];
};

/* A pack in memory: a word, or several of 16 bytes. */
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) pack_memory {
    T x[N];
};

/* What one instruction stores. */
template <int bytes> struct pack_word;
template <> struct pack_word<2> {
    using type = uint16_t;
};
template <> struct pack_word<4> {
    using type = uint32_t;
};
template <> struct pack_word<8> {
    using type = uint2;
};
template <> struct pack_word<16> {
    using type = uint4;
};

/* Store a pack in global memory. An assignment would do, but nvcc splits it into smaller stores
 * where two packs are stored one after the other. */
template <typename T, int N>
static __device__ inline void pack_write(T *to, const struct pack_memory<T, N> &x)
{
    constexpr int n = (int)(sizeof x / alignof(decltype(x)));
    using word = typename pack_word<(int)sizeof x / n>::type;

#pragma unroll
    for (int k = 0; k < n; k++)
        __stwb(reinterpret_cast<word *>(to) + k, reinterpret_cast<const word *>(&x)[k]);
}

/* Elements i .. i + N - 1 of an array. The address of element i is a multiple of the size of the
 * pack's words. */
template <int N> static __device__ inline struct pack<N> pack_load(const float *p, int64_t i) {
    const auto from = *reinterpret_cast<const pack_memory<float, N> *>(p + i);
    struct pack<N> to;

#pragma unroll
    for (int j = 0; j < N; j++)
        to.x[j] = from.x[j];
    return to;
}

template <int N>
static __device__ inline struct pack<N> pack_load(const uint16_t *p, int64_t i) {
    const auto from = *reinterpret_cast<const pack_memory<uint16_t, N> *>(p + i);
    struct pack<N> to;

    if constexpr (N == 1)
        to.x[0] = vec_from_bf16(from.x[0]);
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        uint32_t both; /* so that an instruction suffices for each element */

        memcpy(&both, &from.x[2 * j], sizeof both);
        to.x[2 * j] = vec_float(both << 16);
        to.x[2 * j + 1] = vec_float(both & 0xffff0000);
    }
    return to;
}

/* The same at any address, by N loads. */
template <int N>
static __device__ inline struct pack<N> pack_gather(const float *p, int64_t i) {
    struct pack<N> to;

#pragma unroll
    for (int j = 0; j < N; j++)
        to.x[j] = p[i + j];
    return to;
}

template <int N>
static __device__ inline struct pack<N> pack_load(const void *p, enum dtype type, int64_t i) {
    return type == DTYPE_F32 ? pack_load<N>(static_cast<const float *>(p), i)
                             : pack_load<N>(static_cast<const uint16_t *>(p), i);
}

template <int N>
static __device__ inline void pack_store(float *p, int64_t i, struct pack<N> x)
{
    pack_memory<float, N> to;

#pragma unroll
    for (int j = 0; j < N; j++)
        to.x[j] = x.x[j];
    pack_write(p + i, to);
}

template <int N> static __device__ inline void pack_store(uint16_t *p, int64_t i, struct pack<N> x)
{
    pack_memory<uint16_t, N> to;

    if constexpr (N == 1)
        to.x[0] = (uint16_t)instruction_bf16x2(x.x[0], 0);
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        const uint32_t both = instruction_bf16x2(x.x[2 * j], x.x[2 * j + 1]);

        memcpy(&to.x[2 * j], &both, sizeof both);
    }
    pack_write(p + i, to);
}

template <int N>
static __device__ inline void pack_store(void *p, enum dtype type, int64_t i, struct pack<N> x)
{
    if (type == DTYPE_F32)
        pack_store(static_cast<float *>(p), i, x);
    else
        pack_store(static_cast<uint16_t *>(p), i, x);
}

template <int N> static __device__ inline void pack_add(struct pack<N> &x, const struct pack<N> &y)
{
#pragma unroll
    for (int j = 0; j < N; j++)
        x.x[j] += y.x[j];
}

/* Whether all these addresses are multiples of 16; NULL is one. */
template <typename... P> static inline bool pack_is_aligned(P *...p)
{
    return ((reinterpret_cast<uintptr_t>(p) | ...) & 15) == 0;
}

/* Elements of a pack of 16 bytes. */
static __host__ __device__ constexpr int pack_most(enum dtype type)
{
    return type == DTYPE_BF16 ? PACK_BF16 : PACK;
}

/* run(type, width) with constants: type.value is f32 or bf16; width.value is a pack of 16 bytes, or
 * 1 where arrays do not begin at a multiple of 16. */
template <typename F> static inline void pack_select(enum dtype type, bool is_packed, F run)
{
    using std::integral_constant;

    if (type == DTYPE_BF16 && is_packed)
        run(integral_constant<enum dtype, DTYPE_BF16>(), integral_constant<int, PACK_BF16>());
    else if (type == DTYPE_BF16)
        run(integral_constant<enum dtype, DTYPE_BF16>(), integral_constant<int, 1>());
    else if (is_packed)
        run(integral_constant<enum dtype, DTYPE_F32>(), integral_constant<int, PACK>());
    else
        run(integral_constant<enum dtype, DTYPE_F32>(), integral_constant<int, 1>());
}

/* The number of packs that n elements touch: threads for launch_elements. */
static __host__ __device__ inline int64_t pack_count(int64_t n, int width = PACK)
{
    return n / width + (n % width != 0);
}

/* Who shares elements: worker number `me` of `workers`. */
struct pack_workers {
    int64_t me, workers;
};

static __device__ inline struct pack_workers pack_of_grid(void)
{
    return { launch_thread(), launch_threads() };
}

static __device__ inline struct pack_workers pack_of_block(void)
{
    return { (int64_t)threadIdx.x, LAUNCH_THREADS };
}

static __device__ inline struct pack_workers pack_of_warp(void)
{
    return { launch_lane(), 32 };
}

/* What the functions of pack_each get as their first argument: width.value is N, or 1. */
template <int N> using pack_width = std::integral_constant<int, N>;

/* then(width, i, load(width, i)) for the worker's share of elements begin .. end - 1: of whole
 * packs that begin at a multiple of N, then of the few elements before and after them, one at a
 * time. The loads of `together` packs come before what is done with the first of them, so that they
 * are in flight together even where `then` stores to arrays that the compiler cannot tell apart. */
template <int N, int together, typename L, typename F>
static __device__ inline void pack_each(struct pack_workers w, int64_t begin, int64_t end, L load,
                                        F then)
{
    const int64_t up = (begin + N - 1) / N * N, first = up < end ? up : end;
    const int64_t down = end / N * N, last = down > first ? down : first;
    const int64_t step = w.workers * N, before = first - begin, rest = before + end - last;
    int64_t i = first + w.me * N;

    for (; i + (together - 1) * step < last; i += together * step) {
        decltype(load(pack_width<N>(), i)) x[together];

#pragma unroll
        for (int k = 0; k < together; k++)
            x[k] = load(pack_width<N>(), i + k * step);
#pragma unroll
        for (int k = 0; k < together; k++)
            then(pack_width<N>(), i + k * step, x[k]);
    }
    for (; together > 1 && i < last; i += step)
        then(pack_width<N>(), i, load(pack_width<N>(), i));
    for (int64_t k = w.me; N > 1 && k < rest; k += w.workers) {
        const int64_t at = k < before ? begin + k : last + k - before;

        then(pack_width<1>(), at, load(pack_width<1>(), at));
    }
}

#endif
