/*
 * tests/fakecuda/ptx/probe.cc - launches a kernel that a test has written in PTX (test_ptx.py):
 * probe(out, in, n) with so many blocks and threads. It prints the N words of `out`; `in` has the
 * numbers from 0.
 */
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

enum { N = 512 };

/* What the host launches. The translation of the PTX runs in its place. */
extern "C" void probe(uint64_t *, const uint32_t *, short n)
{
    printf("the translation of probe does not run, n is %d\n", n);
}

int main(int argc, char **argv)
{
    cudaLaunchConfig_t config = {};
    uint64_t *out, *host;
    uint32_t *in, *numbers;

    if (argc != 3)
        return 2;
    cudaStreamCreateWithFlags(&config.stream, cudaStreamNonBlocking);
    cudaMalloc((void **)&out, N * sizeof *out);
    cudaMalloc((void **)&in, N * sizeof *in);
    cudaHostAlloc((void **)&host, N * sizeof *host, cudaHostAllocDefault);
    cudaHostAlloc((void **)&numbers, N * sizeof *numbers, cudaHostAllocDefault);
    for (uint32_t i = 0; i < N; i++)
        numbers[i] = i;
    cudaMemcpyAsync(in, numbers, N * sizeof *in, cudaMemcpyDefault, config.stream);
    cudaMemsetAsync(out, 0, N * sizeof *out, config.stream);
    config.gridDim = dim3((unsigned)atoi(argv[1]));
    config.blockDim = dim3((unsigned)atoi(argv[2]));
    config.dynamicSmemBytes = 8192; /* a panel of kernels/cuda/wgmma.cuh */
    cudaLaunchKernelEx(&config, probe, out, in, (short)7);
    cudaMemcpyAsync(host, out, N * sizeof *out, cudaMemcpyDefault, config.stream);
    if (cudaStreamSynchronize(config.stream))
        return 1;
    for (int i = 0; i < N; i++)
        printf("%llx\n", (unsigned long long)host[i]);
    cudaFreeHost(host);
    cudaFreeHost(numbers);
    cudaFree(out);
    cudaFree(in);
    cudaStreamDestroy(config.stream);
    return 0;
}
