/*
 * tests/fakecuda/planted_memory.cu - mistakes with cudaFree and cudaFreeAsync that the fake device
 * must find, and correct programs in which it must find none, by the chapter of CUDA's programming
 * guide about the stream-ordered memory allocator. `fakecuda_planted_memory NAME` runs one;
 * tests/cli/test_fakecuda_memory.py has the names and what each must print.
 */
#include <cuda_runtime.h>

#include <cstdio>

#include "tests/fakecuda/planted.h"

enum { N = 256, LARGE = 1 << 24 };
static cudaStream_t stream, other;
static cudaEvent_t event;
static float *p; /* device memory of N floats, which a program frees */

__global__ void fill_kernel(float *to, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        to[i] = (float)i;
}

static void use(cudaStream_t s, float *to)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = dim3(1);
    config.blockDim = dim3(64);
    config.stream = s;
    cudaLaunchKernelEx(&config, fill_kernel, to, (int)N);
}

static void take(bool is_async)
{
    if (is_async)
        cudaMallocAsync((void **)&p, LARGE, stream);
    else
        cudaMalloc((void **)&p, LARGE);
}

/* `s` comes after what `of` has queued. */
static void order(cudaStream_t s, cudaStream_t of)
{
    cudaEventRecord(event, of);
    cudaStreamWaitEvent(s, event, 0);
}

/* Use memory on `stream`, and let the host free it after a wait, or without. */
static void host_frees(bool is_async, bool waits)
{
    take(is_async);
    use(stream, p);
    use(stream, p + N);
    if (waits)
        cudaStreamSynchronize(stream);
    cudaFree(p);
}

/* Use memory on `other`, and free it in the order of `stream`. */
static void stream_frees(bool is_async, bool is_ordered)
{
    take(is_async);
    order(other, stream);
    use(other, p);
    if (is_ordered)
        order(stream, other);
    cudaFreeAsync(p, stream);
}

/* The host waits for one of two streams that use the memory. */
static void half_a_wait()
{
    take(true);
    cudaStreamSynchronize(stream);
    use(stream, p);
    use(other, p + N);
    cudaStreamSynchronize(stream);
    cudaFree(p);
}

static void used_later(cudaStream_t s)
{
    take(true);
    cudaStreamSynchronize(stream);
    cudaFreeAsync(p, stream);
    use(s, p);
}

static const planted_program programs[] = {
    /* correct */
    { "free-waits", [] { host_frees(false, false); } },
    { "free-after-a-wait", [] { host_frees(true, true); } },
    { "free-in-order", [] { stream_frees(true, true); } },
    { "free-in-order-of-malloc", [] { stream_frees(false, true); } },
    { "free-null", [] { printf("%d %d ", cudaFree(nullptr), cudaFreeAsync(nullptr, stream)); } },
    { "memory-returns",
      [] {
          size_t before, after, total;

          take(true);
          cudaMemGetInfo(&before, &total);
          cudaFreeAsync(p, stream);
          cudaStreamSynchronize(stream);
          cudaMemGetInfo(&after, &total);
          printf("%d bytes ", (int)(after - before));
      } },
    /* mistakes */
    { "free-without-a-wait", [] { host_frees(true, false); } },
    { "free-after-half-a-wait", half_a_wait },
    { "free-without-order", [] { stream_frees(true, false); } },
    { "free-without-order-of-malloc", [] { stream_frees(false, false); } },
    { "used-later", [] { used_later(stream); } },
    { "used-later-elsewhere", [] { used_later(other); } },
    { "free-async-twice",
      [] {
          take(false);
          cudaFreeAsync(p, stream);
          cudaFreeAsync(p, stream);
      } },
    { "free-both",
      [] {
          take(true);
          cudaFreeAsync(p, stream);
          cudaFree(p);
      } },
    { "free-async-pinned",
      [] {
          cudaHostAlloc((void **)&p, N, 0);
          cudaFreeAsync(p, stream);
      } },
    { "free-async-inside",
      [] {
          take(false);
          cudaFreeAsync(p + 1, stream);
      } },
    { "free-async-in-a-capture",
      [] {
          take(false);
          cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
          cudaFreeAsync(p, stream);
      } },
    { "no-stream",
      [] {
          take(false);
          cudaStreamDestroy(other);
          cudaFreeAsync(p, other);
      } },
};

int main(int argc, char **argv)
{
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    return planted_run(programs, argc, argv);
}
