/*
 * tests/fakecuda/planted_graphs.cu - mistakes with CUDA graphs that the fake device must find, and
 * correct programs in which it must find none. `fakecuda_planted_graphs NAME` runs one;
 * tests/cli/test_fakecuda_graphs.py has the names and what each must print.
 */
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdio>

#include "tests/fakecuda/planted.h"

enum { N = 256 };
static cudaStream_t stream, other;
static cudaEvent_t event, second;
static float *x, *y, *host; /* device memory, device memory, pinned memory; N floats each */

__global__ void add_kernel(float *to, const float *from, float more)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < N;
         i += (int)(gridDim.x * blockDim.x))
        to[i] = from[i] + more;
}

static void add(cudaStream_t s, float *to, const float *from, float more)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = dim3(2);
    config.blockDim = dim3(64);
    config.stream = s;
    cudaLaunchKernelEx(&config, add_kernel, to, from, more);
}

static void begin()
{
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
}

static cudaGraphExec_t end()
{
    cudaGraph_t graph;
    cudaGraphExec_t exec = nullptr;

    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess)
        cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    return exec;
}

/* Launch with another number in pinned memory, and print what came out. */
static void launch(cudaGraphExec_t exec, float number)
{
    host[1] = number;
    cudaGraphLaunch(exec, stream);
    cudaStreamSynchronize(stream);
    printf("host[1] = %g\n", (double)host[1]);
}

static void copy_in()
{
    cudaMemcpyAsync(x, host, N * sizeof *x, cudaMemcpyHostToDevice, stream);
}

static void copy_out(const float *from)
{
    cudaMemcpyAsync(host, from, N * sizeof *from, cudaMemcpyDeviceToHost, stream);
}

/* ---- correct programs ---- */

/* What copies read is read at each launch; the argument `more` is that of the recording. */
static void replay()
{
    float more = 1;

    begin();
    copy_in();
    add(stream, y, x, more);
    copy_out(y);
    cudaGraphExec_t exec = end();
    more = 100;
    host[1] = 5;
    cudaStreamSynchronize(stream);
    printf("recorded: host[1] = %g\n", (double)host[1]);
    launch(exec, 10);
    launch(exec, 20);
    cudaGraphExecDestroy(exec);
}

/* A second stream computes y from x, in the order of events. */
static void fork(bool waits)
{
    begin();
    copy_in();
    cudaEventRecord(event, stream);
    cudaStreamWaitEvent(other, event, 0);
    if (!waits)
        cudaMemsetAsync(x, 0, N * sizeof *x, stream);
    add(other, y, x, 1);
    cudaEventRecord(second, other);
    cudaStreamWaitEvent(stream, second, 0);
    copy_out(y);
    cudaGraphExec_t exec = end();
    launch(exec, 10);
    launch(exec, 20);
}

/* Another stream writes y between launches, with an event or without. */
static void between_launches(bool waits)
{
    begin();
    copy_in();
    add(stream, y, x, 1);
    cudaGraphExec_t exec = end();
    for (int i = 0; i < 2; i++) {
        cudaGraphLaunch(exec, stream);
        cudaEventRecord(event, stream);
        if (waits)
            cudaStreamWaitEvent(other, event, 0);
        cudaMemsetAsync(y, 0, N * sizeof *y, other);
        cudaEventRecord(second, other);
        cudaStreamWaitEvent(stream, second, 0);
    }
}

static void after_the_capture()
{
    begin();
    add(stream, y, x, 1);
    end();
    add(other, y, x, 1);
}

static void product(bool with_workspace)
{
    cublasHandle_t handle;
    const float one = 1, zero = 0;
    float *workspace;

    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    cudaMalloc((void **)&workspace, 1 << 16);
    if (with_workspace)
        cublasSetWorkspace(handle, workspace, 1 << 16);
    begin();
    cublasGemmEx_64(handle, CUBLAS_OP_N, CUBLAS_OP_T, 4, 4, 2, &one, x, CUDA_R_32F, 4, x,
                    CUDA_R_32F, 4, &zero, y, CUDA_R_32F, 4, CUBLAS_COMPUTE_32F,
                    CUBLAS_GEMM_DEFAULT);
    cudaGraphExec_t exec = end();
    cudaGraphLaunch(exec, stream);
    cudaMemcpyAsync(host, y, 64, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    printf("C[1][2] = %g\n", (double)host[6]); /* 1 * 2 + 5 * 6 */
}

/* ---- mistakes ---- */

static void after_a_wait_for(cudaEvent_t e)
{
    begin();
    cudaStreamWaitEvent(stream, e, 0);
    add(stream, y, x, 1);
    end();
}

static void not_joined()
{
    begin();
    cudaEventRecord(event, stream);
    cudaStreamWaitEvent(other, event, 0);
    cudaEventRecord(second, other);
    cudaStreamWaitEvent(stream, second, 0);
    add(other, y, x, 1); /* after the event that joins */
    end();
}

static void event_of_an_ended_capture()
{
    begin();
    cudaEventRecord(event, stream);
    end();
    cudaStreamWaitEvent(other, event, 0);
}

static void ends_elsewhere()
{
    cudaGraph_t graph;

    begin();
    cudaEventRecord(event, stream);
    cudaStreamWaitEvent(other, event, 0);
    cudaStreamEndCapture(other, &graph);
}

static void destroyed()
{
    begin();
    cudaGraphExec_t exec = end();
    cudaGraphExecDestroy(exec);
    cudaGraphLaunch(exec, stream);
}

static void freed_memory()
{
    begin();
    add(stream, y, x, 1);
    cudaGraphExec_t exec = end();
    cudaFree(x);
    cudaGraphLaunch(exec, stream);
}

static void in_capture(void (*call)())
{
    begin();
    call();
}

static const planted_program programs[] = {
    /* correct */
    { "replay", replay },
    { "fork", [] { fork(true); } },
    { "between-launches", [] { between_launches(true); } },
    { "product", [] { product(true); } },
    { "other-stream-goes-on", after_the_capture },
    /* what a capture forbids */
    { "synchronise-stream", [] { in_capture([] { cudaStreamSynchronize(stream); }); } },
    { "synchronise-device", [] { in_capture([] { cudaDeviceSynchronize(); }); } },
    { "synchronise-event", [] { in_capture([] { cudaEventSynchronize(event); }); } },
    { "query-event", [] { in_capture([] { cudaEventQuery(event); }); } },
    { "allocate", [] { in_capture([] { cudaMalloc((void **)&x, 4); }); } },
    { "allocate-pinned", [] { in_capture([] { cudaHostAlloc((void **)&host, 4, 0); }); } },
    { "free", [] { in_capture([] { cudaFree(x); }); } },
    { "free-pinned", [] { in_capture([] { cudaFreeHost(host); }); } },
    { "destroy-stream", [] { in_capture([] { cudaStreamDestroy(other); }); } },
    { "null-stream", [] { in_capture([] { add(nullptr, y, x, 1); }); } },
    { "begin-twice", [] { in_capture(begin); } },
    { "product-allocates", [] { product(false); } },
    { "capture-null-stream",
      [] { cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal); } },
    { "capture-globally", [] { cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal); } },
    /* events and streams */
    { "event-from-before",
      [] {
          cudaEventRecord(event, other);
          after_a_wait_for(event);
      } },
    { "event-never-recorded", [] { after_a_wait_for(event); } },
    { "event-of-an-ended-capture", event_of_an_ended_capture },
    { "wait-of-the-host",
      [] {
          in_capture([] { cudaEventRecord(event, stream); });
          end();
          cudaEventSynchronize(event);
      } },
    { "not-joined", not_joined },
    { "ends-elsewhere", ends_elsewhere },
    { "ends-without-begin", [] { end(); } },
    /* launches */
    { "destroyed", destroyed },
    { "freed-memory", freed_memory },
    { "race-in-a-graph", [] { fork(false); } },
    { "race-between-launches", [] { between_launches(false); } },
};

int main(int argc, char **argv)
{
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&second, cudaEventDisableTiming);
    cudaMalloc((void **)&x, N * sizeof *x);
    cudaMalloc((void **)&y, N * sizeof *y);
    cudaHostAlloc((void **)&host, N * sizeof *host, cudaHostAllocDefault);
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    copy_in();
    cudaStreamSynchronize(stream);
    return planted_run(programs, argc, argv);
}
