/*
 * tests/fakecuda/planted_ranks.cu - mistakes with NCCL and cuBLAS that the fake device must find,
 * and correct programs in which it must find none. `fakecuda_planted_ranks NAME` forks RANKS
 * processes, waits for them, and exits with the largest of their exit codes; tests/cli/
 * test_fakecuda.py has the names and what each must print.
 */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdio>
#include <cstring>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fakecuda/planted.h"

enum { N = 20000, RANKS = 3 }; /* N: more than one part of a message */

static const float ONE = 1;
static int rank;
static cudaStream_t stream, other;
static ncclComm_t all;
static float *x, *y, *host; /* device memory of RANKS * N floats, the same, pinned memory */

static void expect(const char *what, const float *device, int64_t i, float value)
{
    cudaMemcpyAsync(host, device + i, sizeof *host, cudaMemcpyDefault, stream);
    cudaStreamSynchronize(stream);
    if (*host != value)
        printf("rank %d: %s: [%d] = %g, expected %g\n", rank, what, (int)i, (double)*host,
               (double)value);
}

static void correct_collectives()
{
    ncclAllReduce(x, y, N, ncclFloat32, ncclSum, all, stream);
    expect("all-reduce", y, N - 1, (float)(3 * (N - 1) + 300));
    ncclAllReduce(x, x, N, ncclFloat32, ncclMax, all, stream);
    expect("maximum in place", x, 5, 5 + 200);
    ncclAllGather(x, y, N, ncclFloat32, all, stream);
    expect("all-gather", y, 2 * N + 7, 7 + 200);
    ncclReduceScatter(y, y + rank * N, N, ncclFloat32, ncclSum, all, stream);
    expect("reduce-scatter", y, rank * N + 9, 3 * (9 + 200));
}

/* Each rank sends to the next one, on a second stream, so nobody waits for a receiver. The first
 * message of a pair connects them, for which the host waits: one pair after the other. */
static void ring(ncclComm_t comm, bool is_connected, bool in_group)
{
    cudaEvent_t e;

    cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    cudaEventRecord(e, stream);
    cudaStreamWaitEvent(other, e, 0);
    ncclComm_t sends, receives; /* of each pair of neighbours: the sender is the first */
    for (int edge = 0; edge < RANKS; edge++) {
        int sender = edge, receiver = (edge + 1) % RANKS;
        ncclComm_t made;

        ncclCommSplit(comm, rank == sender || rank == receiver ? 0 : NCCL_SPLIT_NOCOLOR,
                      rank != sender, &made, nullptr);
        if (rank == sender)
            sends = made;
        if (rank == receiver)
            receives = made;
        if (is_connected && rank == sender)
            ncclSend(x, 1, ncclFloat32, 1, made, stream);
        if (is_connected && rank == receiver)
            ncclRecv(y, 1, ncclFloat32, 0, made, stream);
        cudaStreamSynchronize(stream);
    }
    ncclSend(x, N, ncclFloat32, 1, sends, other);
    ncclRecv(y, N, ncclFloat32, 0, receives, stream);
    expect("message", y, 3, (float)(3 + 100 * ((rank + 2) % 3)));
    cudaStreamSynchronize(other);
    if (in_group)
        ncclGroupStart();
    ncclCommDestroy(sends);
    ncclCommDestroy(receives);
    if (in_group)
        ncclGroupEnd();
}

/* The host may wait in it for what is queued. */
static cublasHandle_t new_handle()
{
    cublasHandle_t handle;

    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    return handle;
}

static void product(int64_t k, float beta, const float *a, cublasHandle_t handle = new_handle())
{
    const float alpha = 1;

    cublasGemmEx_64(handle, CUBLAS_OP_N, CUBLAS_OP_T, 4, 4, k, &alpha, a, CUDA_R_32F, 4, x,
                    CUDA_R_32F, 4, &beta, y, CUDA_R_32F, 4, CUBLAS_COMPUTE_32F,
                    CUBLAS_GEMM_DEFAULT);
    if (rank == 0 && k == 2) {
        cudaMemcpyAsync(host, y, 64, cudaMemcpyDefault, stream);
        cudaStreamSynchronize(stream);
        printf("C[1][2] = %g\n", (double)host[6]); /* 1 * 2 + 5 * 6 */
    }
}

enum biased_mistake { RIGHT, OTHER_SHAPE, MISALIGNED, HOST_WORKSPACE, HOST_BIAS };

/* The same product with a bias; the algorithm is chosen for k = 2 and for D at y. */
static void biased(biased_mistake mistake)
{
    const float alpha = 1, beta = 0;
    const int32_t trans = CUBLAS_OP_T;
    const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const uint64_t most = 4096;
    const void *bias = mistake == HOST_BIAS ? host : x, *room = x + 32000;
    float *to = mistake == MISALIGNED ? y + 1 : y;
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t in, out;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t chosen;
    int n = 0;

    cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSB, &trans, sizeof trans);
    cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                   sizeof epilogue);
    cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    cublasLtMatrixLayoutInit(&in, CUDA_R_32F, 4, 2, 4);
    cublasLtMatrixLayoutInit(&out, CUDA_R_32F, 4, 4, 4);
    cublasLtMatmulPreferenceInit(&preference);
    cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &most, sizeof most);
    cublasLtMatmulAlgoGetHeuristic(nullptr, &product, &in, &in, &out, &out, &preference, 1, &chosen,
                                   &n);
    if (mistake == OTHER_SHAPE)
        cublasLtMatrixLayoutInit(&in, CUDA_R_32F, 4, 3, 4);
    cublasLtMatmul(nullptr, &product, &alpha, x, &in, x, &in, &beta, to, &out, to, &out,
                   &chosen.algo, mistake == HOST_WORKSPACE ? host : (void *)(uintptr_t)room,
                   chosen.workspaceSize, stream);
    if (rank == 0) {
        cudaMemcpyAsync(host, y, 64, cudaMemcpyDefault, stream);
        cudaStreamSynchronize(stream);
        printf("D[1][2] = %g\n", (double)host[6]); /* 32, and the bias 2 */
    }
}

/* Products that cannot be computed. */
static void wrong_product(const float *a, int64_t lda, const float *alpha)
{
    const float beta = 0;

    cublasGemmEx_64(new_handle(), CUBLAS_OP_N, CUBLAS_OP_T, 4, 4, 2, alpha, a, CUDA_R_32F, lda, x,
                    CUDA_R_32F, 4, &beta, y, CUDA_R_32F, 4, CUBLAS_COMPUTE_32F,
                    CUBLAS_GEMM_DEFAULT);
}

/* Ranks 0 and 1 exchange messages in a group, which connects them. */
static void connect_two()
{
    ncclGroupStart();
    ncclSend(x, 8, ncclFloat32, 1 - rank, all, stream);
    ncclRecv(y, 8, ncclFloat32, 1 - rank, all, stream);
    ncclGroupEnd();
    cudaStreamSynchronize(stream);
}

template <int number> __global__ void nothing_kernel()
{
}

/* Each of so many kernels is loaded, and by chance the host waits. */
template <int n> static void launch_different()
{
    cudaLaunchConfig_t config = {};

    config.gridDim = config.blockDim = dim3(1);
    config.stream = stream;
    cudaLaunchKernelEx(&config, nothing_kernel<n>);
    if constexpr (n > 1)
        launch_different<n - 1>();
}

enum between { LOAD_KERNELS, MULTIPLY, ALLOCATE, ALLOCATE_IN_ORDER };

/* Two ranks send, do something for which CUDA may wait, and receive. */
static void exchange_around(between what)
{
    ncclComm_t up, down; /* from rank 0 to rank 1, and back */
    const float *mine = x;
    cublasHandle_t handle;

    ncclCommSplit(all, rank < 2 ? 0 : NCCL_SPLIT_NOCOLOR, rank, &up, nullptr);
    ncclCommSplit(all, rank < 2 ? 0 : NCCL_SPLIT_NOCOLOR, rank, &down, nullptr);
    if (rank == 2)
        return;
    handle = new_handle();
    for (int round = 0; round < 2; round++) {
        if (rank == 0 || round == 1)
            ncclSend(mine, N, ncclFloat32, 1 - rank, rank == 0 ? up : down, other);
        for (int i = 0; i < 16 && round == 1 && what != LOAD_KERNELS; i++) {
            void *p;

            if (what == MULTIPLY)
                product(i + 3, 0, x, handle); /* each shape may need another kernel */
            else
                what == ALLOCATE ? cudaMalloc(&p, 8) : cudaMallocAsync(&p, 8, stream);
        }
        if (round == 1 && what == LOAD_KERNELS)
            launch_different<16>();
        if (rank == 1 || round == 1)
            ncclRecv(y, N, ncclFloat32, 1 - rank, rank == 0 ? down : up, stream);
        if (rank == 1 && round == 0)
            ncclSend(mine, N, ncclFloat32, 0, down, other);
        if (rank == 0 && round == 0)
            ncclRecv(y, N, ncclFloat32, 1, down, stream);
        cudaDeviceSynchronize();
    }
    ncclCommDestroy(up);
    ncclCommDestroy(down);
    cublasDestroy(handle);
}

/* Rank 0 receives from both others; the others send. */
static void receive_all(int64_t distance, cudaStream_t of_second)
{
    ncclGroupStart();
    if (rank == 0) {
        ncclRecv(y, 10, ncclFloat32, 1, all, stream);
        ncclRecv(y + distance, 10, ncclFloat32, 2, all, of_second);
    } else {
        ncclSend(x, 10, ncclFloat32, 0, all, stream);
    }
    ncclGroupEnd();
}

static void correct_group()
{
    receive_all(10, stream);
    if (rank == 0)
        expect("message of a group", y, 13, 203);
}

/* A sum over the ranks and messages, three times from a graph; or the sum is queued. */
static void recorded_sum(bool is_recorded)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    if (is_recorded)
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    ncclAllReduce(x, y, N, ncclFloat32, ncclSum, all, stream);
    receive_all(10, stream);
    if (!is_recorded)
        return;
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    for (int i = 0; i < 3; i++)
        cudaGraphLaunch(exec, stream);
    ncclAllReduce(x, y, N, ncclFloat32, ncclSum, all, stream);
    expect("all-reduce", y, N - 1, (float)(3 * (N - 1) + 300));
    cudaGraphExecDestroy(exec);
}

/* The communicator is closed before the graph. */
static void graph_of_a_closed_communicator()
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ncclComm_t made;

    ncclCommSplit(all, 0, rank, &made, nullptr);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    ncclAllReduce(x, y, N, ncclFloat32, ncclSum, made, stream);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    cudaGraphLaunch(exec, stream);
    cudaStreamSynchronize(stream);
    ncclCommDestroy(made);
    cudaGraphExecDestroy(exec);
}

static void abort_all()
{
    ncclGroupStart();
    ncclCommAbort(all);
    ncclGroupEnd();
}

static void *abort_after_error(void *)
{
    ncclResult_t error = ncclSuccess;

    while (error == ncclSuccess)
        ncclCommGetAsyncError(all, &error);
    printf("rank %d: %s\n", rank, ncclGetErrorString(error));
    abort_all();
    return nullptr;
}

/* With FAKECUDA_LOSE_NCCL. A thread aborts the collective in which the network is lost, for which
 * the host waits; `in_graph`: the one of a graph, which the host closes then. */
static void lost_network(bool in_graph)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    pthread_t thread;

    if (in_graph)
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    ncclAllReduce(x, y, N, ncclFloat32, ncclSum, all, stream);
    if (in_graph) {
        cudaStreamEndCapture(stream, &graph);
        cudaGraphInstantiate(&exec, graph, 0);
        cudaGraphDestroy(graph);
        cudaGraphLaunch(exec, stream);
    }
    pthread_create(&thread, nullptr, abort_after_error, nullptr);
    cudaStreamSynchronize(stream);
    if (in_graph)
        cudaGraphExecDestroy(exec);
    pthread_join(thread, nullptr);
    all = nullptr;
}

static const planted_program programs[] = {
    /* correct */
    { "collectives", correct_collectives },
    { "ring", [] { ring(all, true, true); } },
    { "allocation-in-order", [] { exchange_around(ALLOCATE_IN_ORDER); } },
    { "product", [] { product(2, 0, x); } },
    { "bias", [] { biased(RIGHT); } },
    { "group", correct_group },
    { "graph", [] { recorded_sum(true); } },
    { "lost-network", [] { lost_network(false); } },
    { "lost-network-graph", [] { lost_network(true); } },
    /* after an abort */
    { "aborted-twice",
      [] {
          abort_all();
          abort_all();
      } },
    { "destroyed-after-abort", abort_all },
    { "call-after-abort",
      [] {
          abort_all();
          ncclAllReduce(x, y, 8, ncclFloat32, ncclSum, all, stream);
      } },
    /* the ranks disagree */
    { "another-count",
      [] { ncclAllReduce(x, y, rank == 1 ? N - 1 : N, ncclFloat32, ncclSum, all, stream); } },
    { "graph-of-some-ranks", [] { recorded_sum(rank != 1); } },
    { "graph-after-its-communicator", graph_of_a_closed_communicator },
    { "another-type",
      [] { ncclAllGather(x, y, 8, rank == 2 ? ncclInt64 : ncclFloat64, all, stream); } },
    { "another-operation",
      [] { ncclAllReduce(x, y, 8, ncclFloat32, rank == 0 ? ncclMax : ncclSum, all, stream); } },
    { "another-order",
      [] {
          if (rank == 0)
              ncclAllReduce(x, y, 8, ncclFloat32, ncclSum, all, stream);
          ncclAllGather(x, y, 8, ncclFloat32, all, stream);
          if (rank != 0)
              ncclAllReduce(x, y, 8, ncclFloat32, ncclSum, all, stream);
      } },
    { "missing-first-call",
      [] {
          if (rank != 1)
              ncclAllReduce(x, y, 8, ncclFloat32, ncclSum, all, stream);
      } },
    { "missing-call",
      [] {
          ncclAllReduce(x, y, 8, ncclFloat32, ncclSum, all, stream);
          if (rank != 1)
              ncclAllReduce(x, y, 8, ncclFloat32, ncclSum, all, stream);
      } },
    { "message-of-another-size",
      [] {
          if (rank == 0)
              ncclSend(x, 10, ncclFloat32, 1, all, stream);
          if (rank == 1)
              ncclRecv(y, 11, ncclFloat32, 0, all, stream);
      } },
    { "sends-that-wait-for-each-other",
      [] {
          if (rank < 2) {
              connect_two();
              ncclSend(x, N, ncclFloat32, 1 - rank, all, stream);
              ncclRecv(y, N, ncclFloat32, 1 - rank, all, stream);
          }
      } },
    { "ring-not-connected", [] { ring(all, false, true); } },
    { "ring-destroyed-one-by-one", [] { ring(all, true, false); } },
    { "kernels-loaded-between-messages", [] { exchange_around(LOAD_KERNELS); } },
    { "products-between-messages", [] { exchange_around(MULTIPLY); } },
    { "allocation-between-messages", [] { exchange_around(ALLOCATE); } },
    { "message-to-nobody", [] { ncclSend(x, 10, ncclFloat32, RANKS, all, stream); } },
    { "group-overlap", [] { receive_all(9, stream); } },
    { "group-of-two-streams", [] { receive_all(10, other); } },
    { "group-not-begun", [] { ncclGroupEnd(); } },
    { "closed-with-calls",
      [] {
          ncclAllReduce(x, y, 8, ncclFloat32, ncclSum, all, stream);
          ncclCommDestroy(all);
      } },
    /* memory */
    { "host-memory", [] { ncclAllReduce(host, y, 8, ncclFloat32, ncclSum, all, stream); } },
    { "beyond", [] { ncclAllGather(x, y + 1, N, ncclFloat32, all, stream); } },
    { "overlap", [] { ncclAllReduce(x, x + 4, 8, ncclFloat32, ncclSum, all, stream); } },
    { "undefined-message", [] { ncclAllReduce(y, x, 8, ncclFloat32, ncclSum, all, stream); } },
    { "no-event",
      [] {
          cudaMemsetAsync(x, 0, 64, other);
          ncclAllReduce(x, y, 8, ncclFloat32, ncclSum, all, stream);
      } },
    { "message-overwritten",
      [] {
          if (rank == 1)
              ncclRecv(y, N, ncclFloat32, 0, all, stream);
          if (rank != 0)
              return;
          ncclSend(x, N, ncclFloat32, 1, all, stream);
          cudaMemsetAsync(x, 0, 64, other);
      } },
    /* cuBLAS */
    { "product-no-event",
      [] {
          cublasHandle_t handle = new_handle();

          cudaMemsetAsync(x, 0, 64, other);
          product(2, 0, x, handle);
      } },
    { "product-narrow", [] { wrong_product(x, 3, &ONE); } },
    { "product-misaligned", [] { wrong_product((const float *)((const char *)x + 2), 4, &ONE); } },
    { "product-scalar-on-device", [] { wrong_product(x, 4, x); } },
    { "product-beyond", [] { product(N, 0, x + 2 * RANKS * N - 4 * N); } },
    { "product-of-undefined", [] { product(3, 1, x); } },
    { "product-in-host-memory", [] { product(3, 0, host); } },
    { "bias-another-shape", [] { biased(OTHER_SHAPE); } },
    { "bias-misaligned", [] { biased(MISALIGNED); } },
    { "bias-workspace", [] { biased(HOST_WORKSPACE); } },
    { "bias-in-host-memory", [] { biased(HOST_BIAS); } },
};

static int run(const planted_program &p, const ncclUniqueId &id)
{
    const size_t bytes = RANKS * N * sizeof *x;

    cudaSetDevice(rank);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaMalloc((void **)&x, bytes);
    cudaMalloc((void **)&y, bytes);
    cudaHostAlloc((void **)&host, bytes, cudaHostAllocDefault);
    for (int i = 0; i < RANKS * N; i++)
        host[i] = (float)(i + 100 * rank);
    cudaMemcpyAsync(x, host, bytes, cudaMemcpyDefault, stream);
    cudaStreamSynchronize(stream);
    ncclCommInitRank(&all, RANKS, id, rank);
    p.run();
    cudaError_t e = cudaDeviceSynchronize();
    printf("rank %d ended: %s\n", rank, cudaGetErrorString(e));
    ncclCommDestroy(all);
    return 0;
}

int main(int argc, char **argv)
{
    for (const auto &p : programs) {
        ncclUniqueId id;
        int worst = 0, status;

        if (argc == 1)
            puts(p.name);
        if (argc != 2 || strcmp(argv[1], p.name) != 0)
            continue;
        ncclGetUniqueId(&id);
        for (rank = 0; rank < RANKS; rank++)
            if (fork() == 0) {
                int code = run(p, id);
                fflush(stdout);
                _exit(code);
            }
        while (wait(&status) > 0)
            worst = WEXITSTATUS(status) > worst ? WEXITSTATUS(status) : worst;
        return worst;
    }
    return 2;
}
