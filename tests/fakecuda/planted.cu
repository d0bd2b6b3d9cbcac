/*
 * tests/fakecuda/planted.cu - mistakes that the fake device must find, and correct programs in
 * which it must find none. `fakecuda_planted NAME` runs one; tests/cli/test_fakecuda.py has the
 * names and what each must print.
 */
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fakecuda/control.h"
#include "tests/fakecuda/planted.h"

extern "C" const struct fakecuda_control fakecuda_control;

static cudaStream_t stream, other;
static float *x, *y, *host; /* device memory, device memory, pinned memory; N floats each */
enum { N = 256 };

template <typename... P, typename... A>
static cudaError_t run_on(cudaStream_t s, unsigned blocks, unsigned threads, void (*kernel)(P...),
                          A &&...a)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = s;
    return cudaLaunchKernelEx(&config, kernel, std::forward<A>(a)...);
}

/* ---- correct kernels ---- */

/* y[i] = the sum of x over the block, by shared memory, barriers and shuffles. */
__global__ void sum_kernel(float *to, const float *from, bool barrier, bool warp_barrier)
{
    __shared__ float of_warp[32];
    const unsigned t = threadIdx.x, warp = t / 32;
    float sum = from[t];

    for (int d = 16; d > 0; d /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (t % 32 == 0)
        of_warp[warp] = sum;
    if (warp_barrier)
        __syncwarp();
    if (!barrier) {
        to[t] = of_warp[warp];
        return;
    }
    __syncthreads();
    sum = 0;
    for (unsigned w = 0; w < blockDim.x / 32; w++)
        sum += of_warp[w];
    to[t] = sum;
}

__global__ void shared_kernel(float *to, const float *from, bool barrier)
{
    __shared__ float all[N];

    all[threadIdx.x] = 0;
    __syncthreads();
    all[threadIdx.x] = from[threadIdx.x];
    if (barrier)
        __syncthreads();
    to[threadIdx.x] = all[N - 1 - threadIdx.x];
}

__global__ void add_kernel(float *to, const float *from, int n, float more)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n;
         i += (int)(gridDim.x * blockDim.x))
        to[i] = from[i] + more;
}

__global__ void count_kernel(float *to, bool atomic)
{
    if (atomic)
        atomicAdd(to, 1.0f);
    else
        *to = 1;
}

struct alignas(16) four {
    float a, b, c, d;
};

__global__ void copy_four_kernel(float *to, const float *from, int offset)
{
    four *t = reinterpret_cast<four *>(to);
    const four *f = reinterpret_cast<const four *>(from + offset);

    t[threadIdx.x] = f[threadIdx.x];
}

/* The numbers of a struct are used one by one; a GPU loads it at once all the same. */
__global__ void sum_four_kernel(float *to, const float *from, int offset)
{
    const four f = reinterpret_cast<const four *>(from + offset)[threadIdx.x];

    to[threadIdx.x] = f.a + f.b + f.c + f.d;
}

__global__ void load_at_kernel(float *to, const char *from, int offset)
{
    *to = *reinterpret_cast<const float *>(from + offset);
}

/* One kind of arithmetic that C++ does not define for every n. */
__global__ void undefined_behaviour_kernel(float *to, int kind, int n)
{
    int small[4];

    if (kind == 0)
        to[0] = (float)(0x7fffff00 + n);
    if (kind == 1)
        to[0] = (float)(1u << n);
    for (int i = 0; kind == 2 && i < n; i++)
        small[i] = i;
    if (kind == 2)
        to[0] = (float)small[0];
    if (kind == 3)
        to[0] = (float)(int)(1e8f * (float)n);
    if (kind == 4)
        to[0] = (float)(100 / (n - 31));
    if (kind == 5)
        to[0] = (float)(-0x7fffff00 - n);
    if (kind == 6)
        to[0] = (float)((n << 8) * 0x10000);
    if (kind == 7)
        to[0] = (float)__builtin_clz((unsigned)(n - 31));
    if (kind == 8)
        to[0] = (float)-(n - 1 - 0x7fffffff);
}

/* An index that is outside of an array in shared memory. */
__global__ void shared_index_kernel(float *to, int n)
{
    __shared__ float part[4];

    part[n] = 1;
    to[0] = part[n];
}

/* A byte that is not a bool. */
__global__ void bool_kernel(float *to)
{
    const unsigned char two = 2;
    bool b;

    memcpy(&b, &two, 1);
    to[0] = b ? 1.0f : 0.0f;
}

/* Lane 0 adds to a number that another lane reads. */
__global__ void atomic_and_read_kernel(float *to)
{
    if (threadIdx.x == 0)
        atomicAdd(to, 1.0f);
    else
        to[1] = to[0];
}

/* The same on the host. */
static int host_sum(int n)
{
    return 0x7fffff00 + n;
}

__global__ void undefined_shared_kernel(float *to)
{
    __shared__ float part[64];

    if (threadIdx.x < 32)
        part[threadIdx.x] = 1;
    __syncthreads();
    to[threadIdx.x] = part[threadIdx.x];
}

/* A vector is read at once, of which only the first two numbers are written. */
__global__ void undefined_half_kernel(float *to)
{
    __shared__ four part;

    part.a = part.b = 1;
    *reinterpret_cast<four *>(to) = part;
}

/* A vector is read, or written, at once, while another thread uses the last of its numbers. */
__global__ void last_number_kernel(float *to, bool writes)
{
    __shared__ four part;
    four *const all = reinterpret_cast<four *>(to);

    if (threadIdx.x == 0)
        part = { 1, 2, 3, 4 };
    __syncthreads();
    if (threadIdx.x == 0 && writes)
        part = all[1];
    else if (threadIdx.x == 0)
        all[0] = part;
    else if (writes)
        to[0] = part.d;
    else
        part.d = 5;
}

__global__ void own_place_kernel(float *to, int n)
{
    to[0] = (float)n; /* every block */
}

__global__ void different_barriers_kernel(float *to)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        to[threadIdx.x] = 0;
    if (threadIdx.x >= 32)
        __syncthreads();
}

/* Half of each warp waits for the other half, which waits for the block. */
__global__ void stuck_kernel(float *to)
{
    if (threadIdx.x % 32 < 16)
        to[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0);
    else
        __syncthreads();
}

__global__ void ended_lane_kernel(float *to)
{
    if (threadIdx.x == 5)
        return;
    to[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0);
}

__global__ void mask_kernel(float *to, unsigned mask, int from)
{
    if (threadIdx.x < 16)
        to[threadIdx.x] = __shfl_sync(mask, (float)threadIdx.x, from);
}

/* A lane's number goes through memory to the next lane. */
__global__ void warp_memory_kernel(float *to, bool barrier)
{
    __shared__ float all[32];

    all[threadIdx.x] = 0;
    __syncwarp();
    all[threadIdx.x] = (float)threadIdx.x;
    if (barrier)
        __syncwarp();
    to[threadIdx.x] = all[(threadIdx.x + 1) % 32];
}

/* ---- programs ---- */

static void finish()
{
    cudaError_t e = cudaDeviceSynchronize();

    printf("ended: %s\n", cudaGetErrorString(e));
}

static void to_device(float *to)
{
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    cudaMemcpyAsync(to, host, N * sizeof *to, cudaMemcpyHostToDevice, stream);
    cudaStreamSynchronize(stream);
}

static void print_first(const float *from)
{
    cudaMemcpyAsync(host, from, N * sizeof *from, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    printf("y[0] = %g\n", (double)host[0]);
}

static void sum()
{
    run_on(stream, 1, N, sum_kernel, y, x, true, true);
    print_first(y); /* 255 * 128 */
}

static void chain(bool with_event, bool write_after_read)
{
    cudaEvent_t e;

    cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    to_device(y);
    run_on(stream, 2, 64, add_kernel, y, x, (int)N, 1.0f); /* reads x, writes y */
    cudaEventRecord(e, stream);
    if (with_event)
        cudaStreamWaitEvent(other, e, 0);
    if (write_after_read)
        cudaMemsetAsync(x, 0, N * sizeof *x, other);
    else
        cudaMemcpyAsync(host, y, N * sizeof *y, cudaMemcpyDeviceToHost, other);
    cudaStreamSynchronize(other);
    printf("host[1] = %g\n", (double)host[1]);
}

/* The end of a large allocation, which the fake device does not fill. */
static void undefined_far()
{
    enum { LARGE = 1 << 20 };
    float *large;

    cudaMalloc((void **)&large, LARGE * sizeof *large);
    run_on(stream, 1, 64, add_kernel, x, large + LARGE - N, (int)N, 1.0f);
}

/* Two streams read x; a third one writes it later, and has waited for only one of them. */
static void one_of_two_readers()
{
    cudaStream_t third;
    cudaEvent_t e;

    cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    run_on(stream, 1, 64, add_kernel, y, x, N / 2, 1.0f);
    run_on(other, 1, 64, add_kernel, y + N / 2, x, N / 2, 1.0f);
    while (fakecuda_control.queued() > 0)
        cudaStreamSynchronize(stream); /* runs other work too, of which the host knows nothing */
    cudaEventRecord(e, stream);
    cudaStreamWaitEvent(third, e, 0);
    cudaMemsetAsync(x, 0, N * sizeof *x, third);
}

/* The host reads pinned memory before it waits: it sees what was there. */
static void early()
{
    memset(host, 0, N * sizeof *host);
    run_on(stream, 1, 64, add_kernel, y, x, (int)N, 1.0f);
    cudaMemcpyAsync(host, y, N * sizeof *y, cudaMemcpyDeviceToHost, stream);
    printf("host[1] = %g\n", (double)host[1]);
}

static void use_after_free()
{
    float *p;

    cudaMalloc((void **)&p, N * sizeof *p);
    cudaFree(p);
    run_on(stream, 1, 64, add_kernel, p, x, (int)N, 1.0f);
}

/* A child's report is this process's. */
static void forked()
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        cudaStreamSynchronize(stream);
        _exit(0);
    }
    waitpid(child, &status, 0);
    _exit(WEXITSTATUS(status));
}

static void free_twice()
{
    float *p;

    cudaMalloc((void **)&p, 4);
    cudaFree(p);
    cudaFree(p);
}

static void free_pinned_twice()
{
    float *p;

    cudaHostAlloc((void **)&p, 4, cudaHostAllocDefault);
    cudaFreeHost(p);
    cudaFreeHost(p);
}

static void pageable()
{
    float z[8];

    cudaMemcpyAsync(z, x, sizeof z, cudaMemcpyDeviceToHost, stream);
}

static const planted_program programs[] = {
    /* correct */
    { "sum", sum },
    { "shared", [] { run_on(stream, 1, N, shared_kernel, y, x, true); } },
    { "warp-memory", [] { run_on(stream, 1, 32, warp_memory_kernel, y, true); } },
    { "structs", [] { run_on(stream, 1, N / 4, sum_four_kernel, y, x, 0); } },
    { "vectors", [] { run_on(stream, 1, N / 4, copy_four_kernel, y, x, 0); } },
    { "event", [] { chain(true, false); } },
    { "event-write", [] { chain(true, true); } },
    { "atomics", [] { run_on(stream, 4, 32, count_kernel, x, true); } },
    { "early", early },
    { "large-block",
      [] { printf("%s\n", cudaGetErrorString(run_on(stream, 1, 2000, count_kernel, x, true))); } },
    /* bounds and addresses */
    { "beyond-read", [] { run_on(stream, 1, 64, add_kernel, y, x + 1, (int)N, 0.f); } },
    { "beyond-write", [] { run_on(stream, 1, 64, add_kernel, y - 1, x, (int)N, 0.f); } },
    { "null", [] { run_on(stream, 1, 1, load_at_kernel, y, (const char *)nullptr, 0); } },
    { "host-pointer",
      [] { run_on(stream, 1, 64, add_kernel, y, (float *)calloc(N, 4), (int)N, 0.f); } },
    { "use-after-free", use_after_free },
    { "free-twice", free_twice },
    { "forked", forked },
    { "misaligned", [] { run_on(stream, 1, 1, load_at_kernel, y, (const char *)x, 2); } },
    { "misaligned-struct", [] { run_on(stream, 1, 8, sum_four_kernel, y, x, 2); } },
    { "misaligned-vector", [] { run_on(stream, 1, 8, copy_four_kernel, y, x, 1); } },
    /* undefined behaviour of C++ */
    { "defined", [] { run_on(stream, 1, 1, undefined_behaviour_kernel, y, 1, 31); } },
    { "overflow", [] { run_on(stream, 1, 1, undefined_behaviour_kernel, y, 0, 1000); } },
    { "shift", [] { run_on(stream, 1, 1, undefined_behaviour_kernel, y, 1, 40); } },
    { "index", [] { run_on(stream, 1, 1, undefined_behaviour_kernel, y, 2, 5); } },
    { "float-to-int", [] { run_on(stream, 1, 1, undefined_behaviour_kernel, y, 3, 40); } },
    { "division", [] { run_on(stream, 1, 1, undefined_behaviour_kernel, y, 4, 31); } },
    { "difference", [] { run_on(stream, 1, 1, undefined_behaviour_kernel, y, 5, 1000); } },
    { "multiplication", [] { run_on(stream, 1, 1, undefined_behaviour_kernel, y, 6, 1000); } },
    { "zeros-of-zero", [] { run_on(stream, 1, 1, undefined_behaviour_kernel, y, 7, 31); } },
    { "negation", [] { run_on(stream, 1, 1, undefined_behaviour_kernel, y, 8, 0); } },
    { "index-shared", [] { run_on(stream, 1, 1, shared_index_kernel, y, 4); } },
    { "bool", [] { run_on(stream, 1, 1, bool_kernel, y); } },
    { "host-overflow", [] { printf("%d\n", host_sum(1000)); } },
    /* undefined reads */
    { "undefined", [] { run_on(stream, 1, 64, add_kernel, x, y, (int)N, 1.0f); } },
    { "undefined-far", undefined_far },
    { "undefined-shared", [] { run_on(stream, 1, 64, undefined_shared_kernel, y); } },
    { "undefined-half", [] { run_on(stream, 1, 1, undefined_half_kernel, y); } },
    { "undefined-copy", [] { cudaMemcpyAsync(host, y, N * 4, cudaMemcpyDeviceToHost, stream); } },
    /* races */
    { "no-barrier", [] { run_on(stream, 1, N, shared_kernel, y, x, false); } },
    { "vector-read", [] { run_on(stream, 1, 2, last_number_kernel, x, false); } },
    { "vector-write", [] { run_on(stream, 1, 2, last_number_kernel, x, true); } },
    { "no-warp-barrier", [] { run_on(stream, 1, 32, warp_memory_kernel, y, false); } },
    { "blocks", [] { run_on(stream, 2, 1, own_place_kernel, y, 3); } },
    { "threads", [] { run_on(stream, 1, 2, own_place_kernel, y, 3); } },
    { "in-place-shift", [] { run_on(stream, 2, 64, add_kernel, x, x + 1, N - 1, 0.f); } },
    { "atomic-and-read", [] { run_on(stream, 1, 32, atomic_and_read_kernel, x); } },
    { "not-atomic", [] { run_on(stream, 4, 32, count_kernel, x, false); } },
    { "no-event", [] { chain(false, false); } },
    { "no-event-write", [] { chain(false, true); } },
    { "one-of-two-readers", one_of_two_readers },
    /* barriers and warps */
    { "different-barriers", [] { run_on(stream, 1, 64, different_barriers_kernel, y); } },
    { "stuck", [] { run_on(stream, 1, 64, stuck_kernel, y); } },
    { "no-such-lane", [] { run_on(stream, 1, 16, ended_lane_kernel, y); } },
    { "ended-lane", [] { run_on(stream, 1, 32, ended_lane_kernel, y); } },
    { "lane-not-in-mask", [] { run_on(stream, 1, 32, mask_kernel, y, 0xffffu, 20); } },
    { "mask-without-caller", [] { run_on(stream, 1, 32, mask_kernel, y, 0xff00u, 8); } },
    /* the host */
    { "host-reads", [] { printf("%g\n", (double)x[0]); } },
    { "host-writes", [] { x[0] = 1; } },
    { "pageable", pageable },
    { "pageable-source",
      [] {
          static const float z[8] = {};
          cudaMemcpyAsync(x, z, sizeof z, cudaMemcpyHostToDevice, stream);
      } },
    { "fill-beyond", [] { cudaMemsetAsync(x + 1, 0, N * sizeof *x, stream); } },
    { "free-pinned-twice", free_pinned_twice },
    { "launch-without-stream",
      [] {
          cudaStreamDestroy(other);
          run_on(other, 1, 1, own_place_kernel, y, 3);
      } },
    { "copy-without-stream",
      [] {
          cudaStreamDestroy(other);
          cudaMemcpyAsync(host, x, 4, cudaMemcpyDeviceToHost, other);
      } },
    { "copy-beyond", [] { cudaMemcpyAsync(host, x + 1, N * 4, cudaMemcpyDefault, stream); } },
    { "wrong-kind", [] { cudaMemcpyAsync(host, x, 4, cudaMemcpyHostToDevice, stream); } },
};

int main(int argc, char **argv)
{
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaMalloc((void **)&x, N * sizeof *x);
    cudaMalloc((void **)&y, N * sizeof *y);
    cudaHostAlloc((void **)&host, N * sizeof *host, cudaHostAllocDefault);
    to_device(x);
    return planted_run(programs, argc, argv);
}
