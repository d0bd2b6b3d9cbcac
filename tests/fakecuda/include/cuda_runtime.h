/*
 * tests/fakecuda/include/cuda_runtime.h - the language of kernels for an ordinary C++ compiler:
 * qualifiers, built-in variables, vector types, barriers, functions of a warp, and launches with
 * cudaLaunchKernelEx. Kernels that are launched with <<< >>> do not compile.
 */
#ifndef FAKECUDA_CUDA_RUNTIME_H
#define FAKECUDA_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
/* Blocks run one after the other, so a static variable is the memory of the block that runs. The
 * section tells which variables these are. */
#define __shared__ static __attribute__((section("fakecuda_shared")))

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

/* Of the thread that runs. */
struct fakecuda_place {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
};
extern fakecuda_place fakecuda_at;
static const uint3 &threadIdx = fakecuda_at.thread;
static const uint3 &blockIdx = fakecuda_at.block;
static const dim3 &blockDim = fakecuda_at.block_dim;
static const dim3 &gridDim = fakecuda_at.grid_dim;
enum { warpSize = 32 };

/* ---- a store as one instruction ---- */

template <typename T> static __forceinline__ void __stwb(T *to, T x)
{
    *to = x;
}

/* ---- barriers and functions of a warp ---- */

/* What the lanes of a warp exchange: each gives `in` and gets the `in` of lane `from`. */
struct fakecuda_shuffle {
    uint64_t in, out;
    int from;
};
/* A barrier of the block; returns how many threads gave a true predicate. Two threads are at the
 * same barrier if they called it from the same place, so the compiler keeps the calls as they
 * are. */
__attribute__((noduplicate, convergent, nomerge)) int fakecuda_barrier(int predicate);
/* Another one, number 1 in PTX, at which threads may wait in different places. */
__attribute__((convergent)) void fakecuda_barrier_anywhere();
void fakecuda_warp_barrier(unsigned mask);
void fakecuda_warp_shuffle(unsigned mask, fakecuda_shuffle *s, const char *name);
unsigned fakecuda_warp_ballot(unsigned mask, int predicate);
int fakecuda_lane();

#define __syncthreads()        ((void)fakecuda_barrier(0))
#define __syncthreads_count(p) fakecuda_barrier(!!(p))
#define __syncthreads_or(p)    (fakecuda_barrier(!!(p)) > 0)
#define __popc(x)              __builtin_popcount(x)
#define __ballot_sync(mask, p) fakecuda_warp_ballot(mask, !!(p))
#define __any_sync(mask, p)    (fakecuda_warp_ballot(mask, !!(p)) != 0)
#define __all_sync(mask, p)    (fakecuda_warp_ballot(mask, !(p)) == 0)

static __forceinline__ void __syncwarp(unsigned mask = 0xffffffffu)
{
    fakecuda_warp_barrier(mask);
}

template <typename T>
static __forceinline__ T fakecuda_from_lane(unsigned mask, T x, int from, const char *name)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "a value to shuffle");
    fakecuda_shuffle s = { 0, 0, from };
    memcpy(&s.in, &x, sizeof x);
    fakecuda_warp_shuffle(mask, &s, name);
    memcpy(&x, &s.out, sizeof x);
    return x;
}

/* A warp is cut into segments of `width` lanes. A source outside of the segment gives the lane's
 * own value. */
template <typename T>
static __forceinline__ T __shfl_sync(unsigned mask, T x, int src, int width = 32)
{
    int first = fakecuda_lane() & ~(width - 1);
    return fakecuda_from_lane(mask, x, first | (src & (width - 1)), "__shfl_sync");
}
template <typename T>
static __forceinline__ T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32)
{
    int lane = fakecuda_lane(), from = lane ^ bits;
    bool outside = from >= (lane & ~(width - 1)) + width;
    return fakecuda_from_lane(mask, x, outside ? lane : from, "__shfl_xor_sync");
}
template <typename T>
static __forceinline__ T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    int lane = fakecuda_lane();
    bool outside = (lane & (width - 1)) + (int)by >= width;
    return fakecuda_from_lane(mask, x, outside ? lane : lane + (int)by, "__shfl_down_sync");
}
template <typename T>
static __forceinline__ T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    int lane = fakecuda_lane();
    bool outside = (lane & (width - 1)) < (int)by;
    return fakecuda_from_lane(mask, x, outside ? lane : lane - (int)by, "__shfl_up_sync");
}

/* ---- tensor cores: see kernels/cuda/mma.cuh ---- */

void fakecuda_mma_m16n8k16(float *d, const uint32_t *a, const uint32_t *b);
void fakecuda_ldmatrix_x4(uint32_t *to, const uint16_t *row, bool transposed);
uint32_t fakecuda_cvt_bf16x2(float upper, float lower);

/* ---- asynchronous copies: see kernels/cuda/async_copy.cuh ---- */

/* n_read bytes of `from`, then zeros, to n bytes of shared memory. */
void fakecuda_cp_async(void *to, const void *from, int n, int n_read);
void fakecuda_cp_async_commit();
void fakecuda_cp_async_wait(int n_groups);

/* ---- products of warpgroups: see kernels/cuda/wgmma.cuh ---- */

/* d = A B, or d += A B with `adds`; A is in registers, or NULL: where descriptor_a says.
 * Transposed: rows of B are rows of its panel, else columns. */
void fakecuda_wgmma_m64n64k16(float *d, const uint32_t *a, uint64_t descriptor_a,
                              uint64_t descriptor_b, bool adds, bool transposed);
/* The same with results at once, for PTX, where nvcc copies registers that products still write:
 * NVIDIA's assembler removes these copies. */
void fakecuda_wgmma_now(float *d, const uint32_t *a, uint64_t descriptor_a, uint64_t descriptor_b,
                        bool adds, bool transposed);
void fakecuda_wgmma_fence();
void fakecuda_wgmma_commit();
void fakecuda_wgmma_wait(int n_groups);
void fakecuda_fence_proxy_async();

/* ---- shared memory ---- */

uint32_t fakecuda_shared_address(const void *p); /* as __cvta_generic_to_shared gives it */
void *fakecuda_dynamic_shared(); /* where the block's dynamic shared memory begins */

/* ---- atomics ---- */

#define FAKECUDA_UNWATCHED __attribute__((no_sanitize("thread"), noinline))

void fakecuda_atomic(void *p, int n_bytes); /* the checks of an atomic access */

/* Threads run one at a time, so plain arithmetic is atomic. */
template <typename T> FAKECUDA_UNWATCHED static T atomicAdd(T *p, T x)
{
    fakecuda_atomic(p, sizeof *p);
    T old = *p;
    *p = (T)(old + x);
    return old;
}
template <typename T> FAKECUDA_UNWATCHED static T atomicXor(T *p, T x)
{
    fakecuda_atomic(p, sizeof *p);
    T old = *p;
    *p = (T)(old ^ x);
    return old;
}
template <typename T> FAKECUDA_UNWATCHED static T atomicMax(T *p, T x)
{
    fakecuda_atomic(p, sizeof *p);
    T old = *p;
    *p = old > x ? old : x;
    return old;
}

/* ---- arithmetic ---- */

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}

/* ---- launches ---- */

struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

/* A kernel with the copies of its arguments. */
struct fakecuda_call {
    const void *kernel;
    const void *args;
    size_t args_bytes;
    void (*run)(const fakecuda_call *);
    void (*free)(const void *args);
    /* Copies the arguments as a GPU receives them, one after the other, if `to` is not NULL;
     * returns how many bytes these are. */
    size_t (*params)(const void *args, char *to);
};
/* Takes the arguments, also when it fails. */
cudaError_t fakecuda_launch(const cudaLaunchConfig_t *config, const fakecuda_call &call);

template <typename... P, size_t... I>
FAKECUDA_UNWATCHED static void fakecuda_run_with(void (*kernel)(P...), const std::tuple<P...> *args,
                                                 std::index_sequence<I...>)
{
    kernel(std::get<I>(*args)...);
}
template <typename... P> FAKECUDA_UNWATCHED static void fakecuda_run(const fakecuda_call *c)
{
    fakecuda_run_with((void (*)(P...))c->kernel, (const std::tuple<P...> *)c->args,
                      std::index_sequence_for<P...>());
}

template <typename T>
FAKECUDA_UNWATCHED static size_t fakecuda_param(const T &x, char *to, size_t at)
{
    at = (at + alignof(T) - 1) / alignof(T) * alignof(T);
    if (to)
        memcpy(to + at, &x, sizeof x);
    return at + sizeof x;
}
template <typename... P>
FAKECUDA_UNWATCHED static size_t fakecuda_params(const void *args, char *to)
{
    size_t at = 0;

    std::apply([&](const auto &...x) { ((at = fakecuda_param(x, to, at)), ...); },
               *(const std::tuple<P...> *)args);
    return at;
}

template <typename... P, typename... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                                             A &&...a)
{
    auto *args = new std::tuple<P...>(std::forward<A>(a)...);
    auto free = [](const void *p) { delete (const std::tuple<P...> *)p; };
    return fakecuda_launch(config, { (const void *)kernel, args, sizeof *args, fakecuda_run<P...>,
                                     free, fakecuda_params<P...> });
}

#endif
