/*
 * kernels/cuda/reduce.cuh - sums and maxima over the threads of a block, and sums of columns. Their
 * order depends only on the shape, so every run gives the same bits.
 */
#ifndef KERNELS_CUDA_REDUCE_CUH
#define KERNELS_CUDA_REDUCE_CUH

#include "kernels/cuda/launch.cuh"

struct reduce_sum {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a + b;
    }
};

struct reduce_max {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a > b ? a : b;
    }
};

/* op over the x of all lanes of a warp, for every lane. All lanes call it. */
template <typename T, typename F> static __device__ T reduce_warp(T x, F op)
{
    for (int d = 16; d > 0; d /= 2)
        x = op(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

/* op over the x of all threads of a block, for every thread. All threads call it. */
template <typename T, typename F> static __device__ T reduce_block(T x, F op)
{
    __shared__ T of_warp[LAUNCH_WARPS];

    for (int d = 16; d > 0; d /= 2)
        x = op(x, __shfl_xor_sync(0xffffffffu, x, d));
    __syncthreads(); /* an earlier call's numbers may still be read */
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warp[threadIdx.x % LAUNCH_WARPS];
    for (int d = LAUNCH_WARPS / 2; d > 0; d /= 2)
        x = op(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

/* The sum over rows of f(row, column) for 32 columns, beginning at 32 * blockIdx.x: the result for
 * column threadIdx.x is in the first 32 threads. Each warp adds every eighth row, 32 of them at a
 * time, so that rounding grows in short chains. All threads of the block call it. */
template <typename F> static __device__ float reduce_columns(int64_t rows, int64_t cols, F f)
{
    __shared__ float of_warp[LAUNCH_WARPS][32];
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32);
    const int64_t c = (int64_t)blockIdx.x * 32 + lane;
    float total = 0;

    for (int64_t first = warp; first < rows && c < cols; first += 32 * LAUNCH_WARPS) {
        float part = 0;

        for (int64_t r = first; r < rows && r < first + 32 * LAUNCH_WARPS; r += LAUNCH_WARPS)
            part += f(r, c);
        total += part;
    }
    __syncthreads(); /* an earlier call's numbers may still be read */
    of_warp[warp][lane] = total;
    __syncthreads();
    total = 0;
    if (warp == 0)
        for (int w = 0; w < LAUNCH_WARPS; w++)
            total += of_warp[w][lane];
    return total;
}

/* The grid for reduce_columns, `count` times. */
static inline dim3 reduce_columns_grid(int64_t cols, int count)
{
    return dim3((unsigned)((cols + 31) / 32), (unsigned)count);
}

/* The column of a thread that has a sum of reduce_columns; -1: the thread has none. */
static __device__ inline int64_t reduce_column(int64_t cols)
{
    int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;

    return threadIdx.x < 32 && c < cols ? c : -1;
}

#endif
