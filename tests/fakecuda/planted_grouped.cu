/*
 * tests/fakecuda/planted_grouped.cu - mistakes with cuBLAS's products of groups that the fake
 * device must find, and correct programs in which it must find none. `fakecuda_planted_grouped
 * NAME` runs one; tests/cli/test_fakecuda_grouped.py has the names and what each must print.
 */
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <functional>

#include "tests/fakecuda/planted.h"

enum { N = 1024, GROUPS = 2 };
static cudaStream_t stream, other;
static cudaEvent_t event;
static float *x, *y, *host; /* device memory, device memory, pinned memory; N floats each */
static cublasHandle_t handle;

/* Where the matrices are, in one copy. */
struct table {
    const void *a[GROUPS], *b[GROUPS];
    void *c[GROUPS];
};

/* The arguments of a call: products of 4 x 2 and 2 x 3 matrices, and of 2 x 2 and 2 x 4 ones. */
struct arguments {
    cublasOperation_t trans_a[GROUPS] = { CUBLAS_OP_N, CUBLAS_OP_N };
    cublasOperation_t trans_b[GROUPS] = { CUBLAS_OP_N, CUBLAS_OP_N };
    int64_t m[GROUPS] = { 4, 2 }, n[GROUPS] = { 3, 4 }, k[GROUPS] = { 2, 2 };
    int64_t lda[GROUPS] = { 4, 2 }, ldb[GROUPS] = { 2, 2 }, ldc[GROUPS] = { 4, 2 };
    int64_t size[GROUPS] = { 1, 1 };
    float alpha[GROUPS] = { 1, 2 }, beta[GROUPS] = { 0, 0 };
    cudaDataType_t type = CUDA_R_32F, c_type = CUDA_R_32F;
    const int64_t *k_at = k;
    struct table *tables, *at; /* in pinned and in device memory */

    arguments()
    {
        cudaHostAlloc((void **)&tables, sizeof *tables, 0);
        cudaMalloc((void **)&at, sizeof *at);
        *tables = { { x, x + 64 }, { x + 128, x + 192 }, { y, y + 64 } };
    }
    void put(cudaStream_t s)
    {
        cudaMemcpyAsync(at, tables, sizeof *at, cudaMemcpyHostToDevice, s);
    }
    cublasStatus_t call(const struct table *from)
    {
        return cublasGemmGroupedBatchedEx_64(handle, trans_a, trans_b, m, n, k_at, alpha, from->a,
                                             type, lda, from->b, type, ldb, beta, from->c, c_type,
                                             ldc, GROUPS, size, CUBLAS_COMPUTE_32F);
    }
    /* The whole program. */
    void run()
    {
        put(stream);
        call(at);
    }
};

static void copy_back()
{
    cudaMemcpyAsync(host, y, N * sizeof *y, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
}

/* ---- correct programs ---- */

static void correct()
{
    arguments a;

    cudaMemsetAsync(y, 0, N * sizeof *y, stream);
    a.run();
    a.put(stream); /* it comes after the products */
    copy_back();
    /* 2 * 131 + 6 * 132; 2 * (66 * 199 + 68 * 200) */
    printf("C[0][1][1] = %g, C[1][1][3] = %g\n", (double)host[5], (double)host[64 + 7]);
}

static void event_orders()
{
    arguments a;

    a.put(other);
    cudaEventRecord(event, other);
    cudaStreamWaitEvent(stream, event, 0);
    a.call(a.at);
}

static void empty()
{
    arguments a;

    a.m[0] = a.k[1] = 0;
    a.beta[1] = 1;
    cudaMemsetAsync(y, 0, N * sizeof *y, stream);
    a.run();
}

static void bf16()
{
    arguments a;

    a.type = a.c_type = CUDA_R_16BF;
    a.run();
}

/* What the call answers, without doing anything. */
static void answers()
{
    arguments wide, narrow, negative, absent;

    wide.type = CUDA_R_16BF;
    narrow.lda[0] = 3;
    negative.n[1] = -1;
    absent.k_at = nullptr;
    for (arguments *a : { &wide, &narrow, &negative, &absent })
        printf("%d ", (int)a->call(a->at));
}

/* ---- mistakes ---- */

static void with(const std::function<void(arguments &)> &change)
{
    arguments a;

    change(a);
    a.run();
}

static void on_the_stack()
{
    arguments a;
    const struct table here = *a.tables;

    a.call(&here);
}

/* bf16 matrices with k elements of `k_bytes`, one of them at a multiple of `of` bytes. */
static void misaligned(int64_t k_bytes, int64_t of)
{
    with([=](arguments &a) {
        a.type = a.c_type = CUDA_R_16BF;
        for (int i = 0; i < GROUPS; i++)
            a.k[i] = a.ldb[i] = k_bytes / 2;
        a.tables->b[1] = (const char *)a.tables->b[1] + of;
    });
}

static const planted_program programs[] = {
    /* correct */
    { "products", correct },
    { "event", event_orders },
    { "empty", empty },
    { "bf16", bf16 },
    { "bf16-by-4", [] { misaligned(12, 4); } },
    { "answers", answers },
    /* where arguments are */
    { "addresses-in-pinned-memory",
      [] {
          arguments a;

          a.call(a.tables);
      } },
    { "addresses-on-the-stack", on_the_stack },
    { "addresses-beyond",
      [] {
          arguments a;

          a.size[1] = 9;
          a.run();
      } },
    { "shapes-on-the-device",
      [] { with([](arguments &a) { a.k_at = (const int64_t *)(const void *)x; }); } },
    { "scalars-on-the-device",
      [] {
          arguments a;

          a.put(stream);
          cublasGemmGroupedBatchedEx_64(handle, a.trans_a, a.trans_b, a.m, a.n, a.k, x, a.at->a,
                                        a.type, a.lda, a.at->b, a.type, a.ldb, a.beta, a.at->c,
                                        a.c_type, a.ldc, GROUPS, a.size, CUBLAS_COMPUTE_32F);
      } },
    /* when addresses are written */
    { "addresses-never-written",
      [] {
          arguments a;

          a.call(a.at);
      } },
    { "addresses-no-event",
      [] {
          arguments a;

          a.put(stream); /* what it reads is defined in every order */
          cudaStreamSynchronize(stream);
          a.put(other);
          a.call(a.at);
      } },
    { "addresses-overwritten",
      [] {
          arguments a;

          a.put(stream);
          cudaEventRecord(event, stream);
          cudaStreamWaitEvent(other, event, 0);
          a.call(a.at);
          a.put(other);
      } },
    /* the matrices */
    { "matrix-on-the-host", [] { with([](arguments &a) { a.tables->c[1] = host; }); } },
    { "matrix-nowhere", [] { with([](arguments &a) { a.tables->a[0] = nullptr; }); } },
    { "matrix-beyond", [] { with([](arguments &a) { a.tables->a[0] = x + N - 7; }); } },
    { "misaligned", [] { with([](arguments &a) { a.tables->a[0] = (const char *)x + 2; }); } },
    { "misaligned-16", [] { misaligned(16, 8); } },
    { "misaligned-4", [] { misaligned(12, 2); } },
    { "overlap", [] { with([](arguments &a) { a.tables->c[1] = y + 11; }); } },
    { "in-place", [] { with([](arguments &a) { a.tables->c[1] = x; }); } },
    { "sums-in-bf16",
      [] {
          cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH);
          bf16();
      } },
    { "undefined", [] { with([](arguments &a) { a.beta[1] = 1; }); } },
};

int main(int argc, char **argv)
{
    void *workspace;

    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaMalloc((void **)&x, N * sizeof *x);
    cudaMalloc((void **)&y, N * sizeof *y);
    cudaMalloc(&workspace, 1 << 16);
    cudaHostAlloc((void **)&host, N * sizeof *host, cudaHostAllocDefault);
    for (int i = 0; i < N; i++)
        host[i] = (float)(i + 1);
    cudaMemcpyAsync(x, host, N * sizeof *x, cudaMemcpyHostToDevice, stream);
    cudaStreamSynchronize(stream);
    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    cublasSetWorkspace(handle, workspace, 1 << 16);
    cublasSetMathMode(handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    return planted_run(programs, argc, argv);
}
