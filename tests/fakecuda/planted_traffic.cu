/*
 * tests/fakecuda/planted_traffic.cu - kernels whose accesses take a known number of sectors of
 * global memory and of wavefronts of shared memory. `fakecuda_planted_traffic NAME` runs one warp
 * of one; tests/cli/test_fakecuda_traffic.py has the names and the numbers.
 */
#include <cuda_runtime.h>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/mma.cuh"
#include "tests/fakecuda/planted.h"

enum { N = 4096, LANES = 32 };
static cudaStream_t stream;
static float *x, *y; /* device memory; N floats each */

template <typename... P, typename... A> static void run(void (*kernel)(P...), A &&...a)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = dim3(1);
    config.blockDim = dim3(LANES);
    config.stream = stream;
    cudaLaunchKernelEx(&config, kernel, std::forward<A>(a)...);
}

/* ---- global memory ---- */

/* y[lane] = x[first + step lane] */
__global__ void read_kernel(float *to, const float *from, int first, int step)
{
    to[threadIdx.x] = from[first + step * (int)threadIdx.x];
}

/* Structs: 32 bytes are two words of 16, of which the lanes of a request use every other one. */
struct alignas(16) eight {
    float x[8];
};
__global__ void structs_kernel(float *to, const float *from)
{
    reinterpret_cast<eight *>(to)[threadIdx.x] = reinterpret_cast<const eight *>(from)[threadIdx.x];
}

/* Odd and even lanes read at different places in the code; all write at one. */
__global__ void branches_kernel(float *to, const float *from)
{
    float z;

    if (threadIdx.x % 2)
        z = from[threadIdx.x];
    else
        z = from[threadIdx.x + 64];
    to[threadIdx.x] = z;
}

static __device__ float load(const float *from, int i)
{
    return from[i];
}

/* Lanes make different numbers of rounds, and call one function from two places: of the five calls
 * of its rounds and the last one, each is a request. */
__global__ void rounds_kernel(float *to, const float *from)
{
    float sum = 0;

    for (int i = (int)threadIdx.x; i < 4 * LANES + 8; i += LANES)
        sum += load(from, i);
    to[threadIdx.x] = sum + load(from, (int)threadIdx.x);
}

/* ---- shared memory ---- */

/* Each lane writes a column of a tile, whose rows have `width` words of type T. */
template <typename T, int width> __global__ void column_kernel()
{
    __shared__ T tile[LANES][width];

    tile[threadIdx.x][0] = T();
}

/* A row instead, and one word that all lanes read. */
__global__ void row_kernel(float *to)
{
    __shared__ float row[LANES];

    row[threadIdx.x] = 1;
    __syncthreads();
    to[threadIdx.x] = row[5];
}

/* Four matrices of 8 x 8 bf16, whose rows have `width` elements, copied and loaded. */
template <int width> __global__ void matrices_kernel(float *to, const float *from)
{
    __shared__ struct alignas(16) {
        uint16_t x[LANES][width];
    } tile;
    uint16_t *row = tile.x[threadIdx.x];
    uint32_t of_lane[4];

    async_copy_16(row, from + 4 * threadIdx.x, threadIdx.x < 24);
    async_copy_commit();
    async_copy_wait<0>();
    __syncthreads();
    mma_load(of_lane, row);
    to[threadIdx.x] = (float)of_lane[0];
}

static const planted_program programs[] = {
    { "coalesced", [] { run(read_kernel, y, x, 0, 1); } },
    { "strided", [] { run(read_kernel, y, x, 0, 32); } },
    { "misaligned", [] { run(read_kernel, y, x, 1, 1); } },
    { "broadcast", [] { run(read_kernel, y, x, 7, 0); } },
    { "structs", [] { run(structs_kernel, y, x); } },
    { "branches", [] { run(branches_kernel, y, x); } },
    { "rounds", [] { run(rounds_kernel, y, x); } },
    { "column", [] { run(column_kernel<float, 32>); } },
    { "padded-column", [] { run(column_kernel<float, 33>); } },
    { "wide-column", [] { run(column_kernel<float2, 16>); } },
    { "row", [] { run(row_kernel, y); } },
    { "matrices", [] { run(matrices_kernel<64>, y, x); } },
    { "padded-matrices", [] { run(matrices_kernel<72>, y, x); } },
};

int main(int argc, char **argv)
{
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaMalloc((void **)&x, N * sizeof *x);
    cudaMalloc((void **)&y, N * sizeof *y);
    cudaMemsetAsync(x, 0, N * sizeof *x, stream);
    return planted_run(programs, argc, argv);
}
