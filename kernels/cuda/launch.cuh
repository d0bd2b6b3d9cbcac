/*
 * kernels/cuda/launch.cuh - how the kernels of this folder are launched, and who does which part.
 *
 * All blocks have LAUNCH_THREADS threads, unless a kernel says something else. A grid is at most as
 * large as what the GPU holds at once; its threads, or its blocks, share the elements, or the rows,
 * in strides.
 */
#ifndef KERNELS_CUDA_LAUNCH_CUH
#define KERNELS_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <utility>

#include "device/cuda/cuda_queue.h"
#include "kernels/cpu/vec.h"
extern "C" {
#include "layout/dtype.h"
}

enum { LAUNCH_THREADS = 256, LAUNCH_WARPS = LAUNCH_THREADS / 32, LAUNCH_BLOCKS = 8 };
enum {
    LAUNCH_ARGUMENTS = 32764 /* bytes, at most, since CUDA 12.1 and with compute capability 7.0 */
};

static __device__ inline int64_t launch_thread(void)
{
    return (int64_t)blockIdx.x * LAUNCH_THREADS + threadIdx.x;
}

static __device__ inline int64_t launch_threads(void)
{
    return (int64_t)gridDim.x * LAUNCH_THREADS;
}

static __device__ inline int launch_lane(void)
{
    return (int)(threadIdx.x % 32);
}

static __device__ inline int64_t launch_warp(void)
{
    return (int64_t)blockIdx.x * LAUNCH_WARPS + threadIdx.x / 32;
}

static __device__ inline int64_t launch_warps(void)
{
    return (int64_t)gridDim.x * LAUNCH_WARPS;
}

/* Blocks for so many blocks' work, at most what the GPU holds at once with blocks_a_processor on
 * each of its processors; at least 1. */
static inline unsigned launch_blocks(const struct device_queue *q, int64_t wanted,
                                     int blocks_a_processor)
{
    int64_t most = (int64_t)cuda_queue_processors(q) * blocks_a_processor;

    return (unsigned)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

/* Launch kernel(a...) on a queue, in blocks of so many threads, with so many bytes of dynamic
 * shared memory. `what` is for the message of a failure. */
template <int THREADS = LAUNCH_THREADS, int SHARED_BYTES = 0, typename... P, typename... A>
static inline void launch(struct device_queue *q, const char *what, dim3 blocks,
                          void (*kernel)(P...), A &&...a)
{
    cudaLaunchConfig_t config = {};

    if (!cuda_queue_begin(q))
        return;
    if (SHARED_BYTES > 0)
        cuda_queue_check(q, what,
                         cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              SHARED_BYTES));
    config.gridDim = blocks;
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = SHARED_BYTES;
    config.stream = cuda_queue_stream(q);
    cuda_queue_check(q, what, cudaLaunchKernelEx(&config, kernel, std::forward<A>(a)...));
}

/* A grid whose threads share n elements; nothing is launched for none. */
template <typename... P, typename... A>
static inline void launch_elements(struct device_queue *q, const char *what, int64_t n,
                                   void (*kernel)(P...), A &&...a)
{
    int64_t blocks = n / LAUNCH_THREADS + (n % LAUNCH_THREADS != 0);

    if (n > 0)
        launch(q, what, dim3(launch_blocks(q, blocks, LAUNCH_BLOCKS)), kernel,
               std::forward<A>(a)...);
}

/* A grid whose blocks share the rows of a matrix. */
template <typename... P, typename... A>
static inline void launch_rows(struct device_queue *q, const char *what, int64_t rows,
                               void (*kernel)(P...), A &&...a)
{
    if (rows > 0)
        launch(q, what, dim3(launch_blocks(q, rows, LAUNCH_BLOCKS)), kernel, std::forward<A>(a)...);
}

/* A block for each of n parts of the work, which take different times: a processor that is free
 * gets the next one. */
template <int THREADS = LAUNCH_THREADS, typename... P, typename... A>
static inline void launch_each(struct device_queue *q, const char *what, int64_t n,
                               void (*kernel)(P...), A &&...a)
{
    if (n > 0)
        launch<THREADS>(q, what, dim3((unsigned)n), kernel, std::forward<A>(a)...);
}

/* The same with a T in dynamic shared memory, where blocks may have more than 48 KiB. */
template <typename T, typename... P, typename... A>
static inline void launch_each_shared(struct device_queue *q, const char *what, int64_t n,
                                      void (*kernel)(P...), A &&...a)
{
    if (n > 0)
        launch<LAUNCH_THREADS, (int)sizeof(T)>(q, what, dim3((unsigned)n), kernel,
                                               std::forward<A>(a)...);
}

/* The T of such a block. */
template <typename T> static __device__ inline T *launch_shared(void)
{
    static_assert(alignof(T) <= 1024, "how dynamic shared memory is aligned");
#ifdef __CUDACC__
    extern __shared__ __align__(1024) unsigned char launch_shared_bytes[];
    return reinterpret_cast<T *>(launch_shared_bytes);
#else
    return reinterpret_cast<T *>(fakecuda_dynamic_shared());
#endif
}

/* Blocks with so many warps together. */
static inline int64_t launch_warp_blocks(int64_t warps)
{
    return (warps + LAUNCH_WARPS - 1) / LAUNCH_WARPS;
}

/* A grid whose warps share rows: launch_warp() has rows launch_warp(), + launch_warps(), ... */
template <typename... P, typename... A>
static inline void launch_warp_rows(struct device_queue *q, const char *what, int64_t rows,
                                    void (*kernel)(P...), A &&...a)
{
    launch_rows(q, what, launch_warp_blocks(rows), kernel, std::forward<A>(a)...);
}

/* Which of n lists has number `at` of all their elements together: list `from` or a later one.
 * ends[i]: the elements of lists 0 .. i. Steps of a search wait for each other, so it has few. */
static __device__ inline int launch_list_of(const int *ends, int n, int from, int at)
{
    if (at < ends[from])
        return from;
    for (int last = n - 1; from < last;) {
        const int middle = (from + last) / 2;

        if (at < ends[middle])
            last = middle;
        else
            from = middle + 1;
    }
    return from;
}

/* Element i of an array of f32 or bf16. */
static __device__ inline float launch_load(const void *x, enum dtype type, int64_t i)
{
    return type == DTYPE_F32 ? ((const float *)x)[i] : vec_from_bf16(((const uint16_t *)x)[i]);
}

static __device__ inline void launch_store(void *y, enum dtype type, int64_t i, float x)
{
    if (type == DTYPE_F32)
        ((float *)y)[i] = x;
    else
        ((uint16_t *)y)[i] = vec_to_bf16(x);
}

#endif
