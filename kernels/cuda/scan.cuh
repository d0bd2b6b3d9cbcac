/*
 * kernels/cuda/scan.cuh - sums of all numbers before each number of a list, by which sorts find the
 * places of what they count.
 */
#ifndef KERNELS_CUDA_SCAN_CUH
#define KERNELS_CUDA_SCAN_CUH

#include "kernels/cuda/launch.cuh"

/* The sum of the x of this lane and of those before it. All lanes call it. */
static __device__ int32_t scan_warp(int32_t x)
{
    for (int d = 1; d < 32; d *= 2) {
        int32_t before = __shfl_up_sync(0xffffffffu, x, (unsigned)d);

        x += launch_lane() >= d ? before : 0;
    }
    return x;
}

/* out[0] = 0 and out[i + 1] = f(0) + ... + f(i), by one block; f(i) may be out[i + 1]. All threads
 * call it; a kernel that calls it again needs a barrier between the calls. */
template <typename F> static __device__ void scan_block(int32_t *out, int n, F f)
{
    __shared__ int32_t of_warp[LAUNCH_WARPS];
    const int each = (n + LAUNCH_THREADS - 1) / LAUNCH_THREADS, warp = (int)(threadIdx.x / 32);
    const int first = (int)threadIdx.x * each, end = first + each < n ? first + each : n;
    int32_t own = 0, total;

    for (int i = first; i < end; i++)
        own += f(i);
    total = scan_warp(own);
    if (launch_lane() == 31)
        of_warp[warp] = total;
    __syncthreads();
    total -= own;
    for (int w = 0; w < warp; w++)
        total += of_warp[w];
    for (int i = first; i < end; i++) {
        total += f(i);
        out[i + 1] = total;
    }
    if (threadIdx.x == 0)
        out[0] = 0;
}

#endif
