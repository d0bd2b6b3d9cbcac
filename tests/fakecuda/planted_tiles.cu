/*
 * tests/fakecuda/planted_tiles.cu - mistakes with tensor cores and asynchronous copies that the
 * fake device must find, and correct programs in which it must find none. `fakecuda_planted_tiles
 * NAME` runs one; tests/cli/test_fakecuda_tiles.py has the names and what each must print.
 */
#include <cuda_runtime.h>

#include <cstdio>

#include "kernels/cpu/vec.h"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/mma.cuh"
#include "tests/fakecuda/planted.h"

enum { N = 256 };
static cudaStream_t stream;
static float *x, *y, *host; /* device memory, device memory, pinned memory; N floats each */

template <typename... P, typename... A>
static void run(unsigned threads, void (*kernel)(P...), A &&...a)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = dim3(1);
    config.blockDim = dim3(threads);
    config.stream = stream;
    cudaLaunchKernelEx(&config, kernel, std::forward<A>(a)...);
}

static void copy_back(int n)
{
    cudaMemcpyAsync(host, y, (size_t)n * sizeof *y, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
}

/* ---- tensor cores ---- */

/* Matrices of whole numbers, which bf16 and f32 have exactly. */
static __host__ __device__ float element_a(int row, int k)
{
    return (float)((3 * row + 5 * k) % 17 - 8);
}

static __host__ __device__ float element_b(int k, int col)
{
    return (float)((7 * k + 2 * col) % 13 - 6);
}

enum { RIGHT, WRONG_LAYOUT, ENDED_LANE, NO_WARP_BARRIER, MISALIGNED_ROW, GLOBAL_ROW, DIVIDED };

/* to[16][8] = A[16][16] B[16][8] by tensor cores: a warp writes both into shared memory, loads
 * fragments, and multiplies. Or with a mistake. */
__global__ void mma_kernel(float *to, const float *from, int mistake)
{
    __shared__ struct alignas(16) {
        uint16_t a[16][24], b[16][16];
    } m;
    const int lane = (int)threadIdx.x, row = lane / 8 % 2 * 8 + lane % 8, col = lane / 16 * 8;
    const uint16_t *first = &m.a[row][col];
    uint32_t of_a[4], of_b[4];
    float d[4] = {};

    for (int i = lane; i < 16 * 16; i += 32) {
        m.a[i / 16][i % 16] = vec_to_bf16(element_a(i / 16, i % 16));
        m.b[i / 16][i % 16] = vec_to_bf16(element_b(i / 16, i % 16));
    }
    if (mistake != NO_WARP_BARRIER)
        __syncwarp();
    if (mistake == ENDED_LANE && lane == 5)
        return;
    if (mistake == MISALIGNED_ROW)
        first += 1;
    if (mistake == GLOBAL_ROW)
        first = reinterpret_cast<const uint16_t *>(from);
    if (mistake == DIVIDED && lane >= 16)
        mma_load_transposed(of_a, first);
    else
        mma_load(of_a, first);
    mma_load_transposed(of_b, &m.b[row][col]);
    if (mistake == WRONG_LAYOUT) {
        uint32_t second = of_a[1];

        of_a[1] = of_a[2];
        of_a[2] = second;
    }
    mma_add(d, of_a, of_b);
    for (int i = 0; i < 4; i++)
        to[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

/* Compare the product of fragments with a plain one. */
static void mma(int mistake)
{
    bool equal = true;

    run(32, mma_kernel, y, x, mistake);
    copy_back(16 * 8);
    for (int i = 0; i < 16 * 8; i++) {
        float sum = 0;

        for (int k = 0; k < 16; k++)
            sum += element_a(i / 8, k) * element_b(k, i % 8);
        equal = equal && host[i] == sum;
    }
    printf("%s\n", equal ? "equal" : "another product");
}

/* ---- asynchronous copies ---- */

enum copy_mistake {
    COPY_RIGHT,
    NO_WAIT,
    NO_COMMIT,
    NO_BARRIER,
    READ_IN_FLIGHT,
    WRITTEN_IN_FLIGHT,
    COPIED_TWICE,
    STILL_READ,
    MISALIGNED,
    TO_GLOBAL,
    BEYOND
};

/* to = from + 1, by four tiles of 64 floats. While one is used the next one is copied, to the other
 * of two buffers. The last 4 floats are not there: they are 0 + 1. Or with a mistake. */
__global__ void copy_kernel(float *to, const float *from, enum copy_mistake mistake)
{
    __shared__ struct alignas(16) {
        float x[2][64];
    } shared;
    float(*const tile)[64] = shared.x;
    const int t = (int)threadIdx.x;

    for (int n = -1; n < 4; n++) {
        if (n >= 0 && mistake != NO_WAIT)
            async_copy_wait<0>();
        if (mistake != STILL_READ && (mistake != NO_BARRIER || n < 0))
            __syncthreads();
        if (n < 3 && t < 16) {
            float *next = &tile[mistake == STILL_READ ? 0 : (n + 1) & 1][4 * t];
            const float *more = from + 64 * (n + 1) + 4 * t;

            async_copy_16(mistake == TO_GLOBAL ? to : next + (mistake == MISALIGNED),
                          more + (mistake == BEYOND ? 4 : 0), mistake == BEYOND || n < 2 || t < 15);
            if (mistake == COPIED_TWICE)
                async_copy_16(next, more, true);
            if (mistake == WRITTEN_IN_FLIGHT)
                *next = 0;
            if (mistake != NO_COMMIT)
                async_copy_commit();
        }
        if (mistake == READ_IN_FLIGHT && n == 0)
            to[0] = tile[1][t];
        if (n >= 0)
            to[64 * n + t] = tile[mistake == STILL_READ ? 0 : n & 1][t] + 1;
    }
}

/* Two groups in flight: the older one is waited for first. */
__global__ void groups_kernel(float *to, const float *from, bool waits_for_both)
{
    __shared__ struct alignas(16) {
        float x[2][32];
    } shared;
    float(*const tile)[32] = shared.x;
    const int t = (int)threadIdx.x;

    async_copy_4(&tile[0][t], from + t, true);
    async_copy_commit();
    async_copy_4(&tile[1][t], from + 32 + t, true);
    async_copy_commit();
    if (waits_for_both)
        async_copy_wait<0>();
    else
        async_copy_wait<1>();
    to[t] = tile[0][t];
    to[32 + t] = tile[1][t];
    async_copy_wait<0>();
}

static void copy(enum copy_mistake mistake)
{
    run(64, copy_kernel, y, x, mistake);
    copy_back(N);
    printf("%g %g %g\n", (double)host[0], (double)host[N - 5], (double)host[N - 1]);
}

static const planted_program programs[] = {
    /* correct */
    { "mma", [] { mma(RIGHT); } },
    { "mma-layout", [] { mma(WRONG_LAYOUT); } },
    { "copy", [] { copy(COPY_RIGHT); } },
    { "groups", [] { run(32, groups_kernel, y, x, true); } },
    /* tensor cores */
    { "mma-ended-lane", [] { mma(ENDED_LANE); } },
    { "mma-no-warp-barrier", [] { mma(NO_WARP_BARRIER); } },
    { "mma-misaligned", [] { mma(MISALIGNED_ROW); } },
    { "mma-global", [] { mma(GLOBAL_ROW); } },
    { "mma-divided", [] { mma(DIVIDED); } },
    /* asynchronous copies */
    { "copy-no-wait", [] { copy(NO_WAIT); } },
    { "copy-no-commit", [] { copy(NO_COMMIT); } },
    { "copy-no-barrier", [] { copy(NO_BARRIER); } },
    { "copy-wrong-group", [] { run(32, groups_kernel, y, x, false); } },
    { "copy-read-in-flight", [] { copy(READ_IN_FLIGHT); } },
    { "copy-written-in-flight", [] { copy(WRITTEN_IN_FLIGHT); } },
    { "copy-twice", [] { copy(COPIED_TWICE); } },
    { "copy-still-read", [] { copy(STILL_READ); } },
    { "copy-misaligned", [] { copy(MISALIGNED); } },
    { "copy-to-global", [] { copy(TO_GLOBAL); } },
    { "copy-beyond", [] { copy(BEYOND); } },
};

int main(int argc, char **argv)
{
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaMalloc((void **)&x, N * sizeof *x);
    cudaMalloc((void **)&y, N * sizeof *y);
    cudaHostAlloc((void **)&host, N * sizeof *host, cudaHostAllocDefault);
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    cudaMemcpyAsync(x, host, N * sizeof *x, cudaMemcpyHostToDevice, stream);
    cudaStreamSynchronize(stream);
    return planted_run(programs, argc, argv);
}
