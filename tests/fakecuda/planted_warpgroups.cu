/*
 * tests/fakecuda/planted_warpgroups.cu - mistakes with products of warpgroups that the fake device
 * must find, and correct programs in which it must find none. `fakecuda_planted_warpgroups NAME`
 * runs one; tests/cli/test_fakecuda_warpgroups.py has the names and what each must print.
 */
#include <cuda_runtime.h>

#include <cstdio>

#include "kernels/cpu/vec.h"
#include "kernels/cuda/instruction.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "tests/fakecuda/planted.h"

enum { N = WGMMA_ROWS * WGMMA_COLUMNS };
static cudaStream_t stream;
static float *y, *host; /* device memory, pinned memory; N floats each */

struct panels {
    struct wgmma_panel<WGMMA_ROWS> a, b;
};

enum mistake {
    RIGHT,
    TRANSPOSED,
    WRONG_CHUNK,
    WRONG_STRIDE,
    WRONG_SWIZZLE,
    NO_FENCE,
    NO_PROXY_FENCE,
    NO_BARRIER,
    READ_EARLY,
    NO_WAIT,
    WRITTEN_IN_FLIGHT,
    DIVIDED,
    SMALL_SHARED,
};

/* Matrices of whole numbers, which bf16 and f32 have exactly. */
static __host__ __device__ float element(int row, int col, bool is_b)
{
    return is_b ? (float)((7 * row + 2 * col) % 13 - 6) : (float)((3 * row + 5 * col) % 17 - 8);
}

/* Columns 16 k .. 16 k + 15 of the warp's rows of A, as fragments. */
static __device__ void load_fragment(uint32_t *to, int k)
{
    const int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32 * 16;

    for (int i = 0; i < 4; i++) {
        const int row = first + lane / 4 + i % 2 * 8, col = 16 * k + lane % 4 * 2 + i / 2 * 8;

        to[i] = instruction_bf16x2(element(row, col, false), element(row, col + 1, false));
    }
}

/* to[64][64] = A B^T, or A B with TRANSPOSED, which has A in registers; all are 64 x 64. */
__global__ void product_kernel(float *to, enum mistake mistake)
{
    struct panels *p = (struct panels *)fakecuda_dynamic_shared();
    const int t = (int)threadIdx.x, warp = t / 32, lane = t % 32;
    uint64_t a = wgmma_descriptor(&p->a), b = wgmma_descriptor(&p->b);
    uint32_t fragments[4][4];
    float d[32] = {};

    for (int i = t; i < N; i += WGMMA_THREADS) {
        const int row = i / 64, col = i % 64, chunk = wgmma_chunk(row, col / 8);
        const int at = (mistake == WRONG_CHUNK ? col / 8 * 8 : chunk) + col % 8;

        p->a.x[row][chunk + col % 8] = vec_to_bf16(element(row, col, false));
        p->b.x[row][at] = vec_to_bf16(element(row, col, true));
    }
    if (mistake != NO_PROXY_FENCE)
        wgmma_fence_shared();
    if (mistake != NO_BARRIER)
        __syncthreads();
    if (mistake == WRONG_STRIDE)
        b += (uint64_t)1 << 32;
    if (mistake == WRONG_SWIZZLE)
        b += (uint64_t)1 << 62;
    if (mistake != NO_FENCE)
        wgmma_fence();
    for (int k = 0; k < 4; k++) {
        if (mistake == DIVIDED && warp == 3 && k == 3)
            continue;
        load_fragment(fragments[k], k);
        if (mistake == TRANSPOSED)
            wgmma_sum(d, fragments[k], wgmma_later(b, k * 16 * 128));
        else
            wgmma_dots(d, wgmma_later(a, k * 32), wgmma_later(b, k * 32), k > 0);
    }
    wgmma_commit();
    if (mistake == WRITTEN_IN_FLIGHT) {
        __syncthreads();
        p->b.x[t / 2][t % 2] = 0;
    }
    if (mistake != NO_WAIT && mistake != READ_EARLY)
        wgmma_wait<0>();
    for (int i = 0; i < 32; i++)
        to[(16 * warp + lane / 4 + i / 2 % 2 * 8) * 64 + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
    if (mistake == READ_EARLY)
        wgmma_wait<0>();
}

/* Compare with a plain product. */
static void product(enum mistake mistake)
{
    cudaLaunchConfig_t config = {};
    bool equal = true;

    config.gridDim = dim3(1);
    config.blockDim = dim3(WGMMA_THREADS);
    config.stream = stream;
    config.dynamicSmemBytes = sizeof(struct panels) - (mistake == SMALL_SHARED ? 16 : 0);
    cudaLaunchKernelEx(&config, product_kernel, y, mistake);
    cudaMemcpyAsync(host, y, N * sizeof *y, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    for (int i = 0; i < N; i++) {
        float sum = 0;

        for (int k = 0; k < 64; k++)
            sum += element(i / 64, k, false) *
                   (mistake == TRANSPOSED ? element(k, i % 64, true) : element(i % 64, k, true));
        equal = equal && host[i] == sum;
    }
    printf("%s\n", equal ? "equal" : "another product");
}

/* Dynamic shared memory of more than 48 KiB has to be allowed first. */
__global__ void first_byte_kernel(float *to)
{
    *(float *)fakecuda_dynamic_shared() = 5;
    *to = *(float *)fakecuda_dynamic_shared();
}

static void large(bool is_allowed)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = config.blockDim = dim3(1);
    config.stream = stream;
    config.dynamicSmemBytes = 64 << 10;
    if (is_allowed)
        cudaFuncSetAttribute((const void *)first_byte_kernel,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10);
    printf("%s\n", cudaGetErrorString(cudaLaunchKernelEx(&config, first_byte_kernel, y)));
}

/* The second warpgroup reads what the first one has written; each waits at its own place. */
__global__ void turns_kernel(float *to, bool is_right)
{
    float *x = (float *)fakecuda_dynamic_shared();
    const int t = (int)threadIdx.x;

    if (t < WGMMA_THREADS) {
        x[t] = (float)t;
        wgmma_turn();
    } else {
        if (is_right)
            wgmma_turn();
        else
            __syncthreads();
        to[t - WGMMA_THREADS] = x[t - WGMMA_THREADS];
    }
}

static void turns(bool is_right)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = dim3(1);
    config.blockDim = dim3(2 * WGMMA_THREADS);
    config.stream = stream;
    config.dynamicSmemBytes = WGMMA_THREADS * sizeof(float);
    cudaLaunchKernelEx(&config, turns_kernel, y, is_right);
    cudaMemcpyAsync(host, y, WGMMA_THREADS * sizeof *y, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    printf("%g\n", host[WGMMA_THREADS - 1]);
}

static const planted_program programs[] = {
    /* correct */
    { "turns", [] { turns(true); } },
    { "dots", [] { product(RIGHT); } },
    { "sum", [] { product(TRANSPOSED); } },
    { "large", [] { large(true); } },
    /* seen in the result only */
    { "chunk", [] { product(WRONG_CHUNK); } },
    { "early", [] { product(READ_EARLY); } },
    { "not-allowed", [] { large(false); } },
    /* found */
    { "stride", [] { product(WRONG_STRIDE); } },
    { "swizzle", [] { product(WRONG_SWIZZLE); } },
    { "no-fence", [] { product(NO_FENCE); } },
    { "no-proxy-fence", [] { product(NO_PROXY_FENCE); } },
    { "no-barrier", [] { product(NO_BARRIER); } },
    { "no-wait", [] { product(NO_WAIT); } },
    { "written-in-flight", [] { product(WRITTEN_IN_FLIGHT); } },
    { "divided", [] { product(DIVIDED); } },
    { "turn-and-barrier", [] { turns(false); } },
    { "small-shared", [] { product(SMALL_SHARED); } },
};

int main(int argc, char **argv)
{
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaMalloc((void **)&y, N * sizeof *y);
    cudaHostAlloc((void **)&host, N * sizeof *host, cudaHostAllocDefault);
    return planted_run(programs, argc, argv);
}
