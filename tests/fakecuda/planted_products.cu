/*
 * tests/fakecuda/planted_products.cu - mistakes with cuBLAS's and cuBLASLt's products of two
 * matrices that the fake device must find, and correct programs in which it must find none.
 * `fakecuda_planted_products NAME` runs one; tests/cli/test_fakecuda_products.py has the names and
 * what each must print.
 */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <functional>

#include "tests/fakecuda/planted.h"

enum { N = 1024, SIZE = 8 };
static const size_t WORKSPACE = 1 << 16;
static cudaStream_t stream;
static cublasHandle_t handle;
static float *x, *y, *host; /* device memory of N floats: ones, and zeros; pinned memory */
static void *workspace;

/* ---- cuBLAS ---- */

static void multiply(cudaDataType c_type)
{
    const float alpha = 1, beta = 0;

    cublasGemmEx_64(handle, CUBLAS_OP_N, CUBLAS_OP_N, SIZE, SIZE, SIZE, &alpha, x, CUDA_R_16BF,
                    SIZE, x, CUDA_R_16BF, SIZE, &beta, y, c_type, SIZE, CUBLAS_COMPUTE_32F,
                    CUBLAS_GEMM_DEFAULT);
}

/* Products of f32 matrices that share A; B and C are `b` and `c` elements apart, and C's columns
 * `ldc`. */
static void multiply_batch(int64_t count, int64_t b, int64_t c, int64_t ldc)
{
    const float alpha = 1, beta = 0;

    cublasGemmStridedBatchedEx_64(handle, CUBLAS_OP_N, CUBLAS_OP_N, SIZE, SIZE, SIZE, &alpha, x,
                                  CUDA_R_32F, SIZE, 0, x, CUDA_R_32F, SIZE, b, &beta, y, CUDA_R_32F,
                                  ldc, c, count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

static void multiply_with(int math, cudaDataType c_type)
{
    cublasSetMathMode(handle, (cublasMath_t)math);
    multiply(c_type);
}

/* ---- cuBLASLt ---- */

/* A product of bf16 matrices of SIZE rows and columns, with an epilogue. */
struct arguments {
    uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const void *bias = x + 256;
    cudaDataType d_type = CUDA_R_16BF;
    int32_t count = 1, count_of_d = 0;             /* products; 0: as many matrices D */
    size_t count_bytes = sizeof count;             /* of the attribute */
    int64_t step_a = 0, step_d = 0, step_bias = 0; /* as the heuristic and the call are told */
    uint32_t alignment_d = 256;                    /* as the heuristic is told */

    void repeat(cublasLtMatrixLayout_t layout, int32_t n, int64_t step) const
    {
        const int64_t wide = n;

        cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &wide,
                                         count_bytes);
        cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                         sizeof step);
    }

    void run() const
    {
        const cublasLtHandle_t lt = reinterpret_cast<cublasLtHandle_t>(handle);
        cublasLtMatmulDescOpaque_t product;
        cublasLtMatrixLayoutOpaque_t a, d;
        cublasLtMatmulPreferenceOpaque_t preference;
        cublasLtMatmulHeuristicResult_t chosen;
        const uint64_t n_workspace = WORKSPACE;
        const float alpha = 1, beta = 0;
        int n = 0;

        cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                       sizeof epilogue);
        cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                       sizeof bias);
        cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, &step_bias,
                                       sizeof step_bias);
        cublasLtMatrixLayoutInit(&a, CUDA_R_16BF, SIZE, SIZE, SIZE);
        cublasLtMatrixLayoutInit(&d, d_type, SIZE, SIZE, SIZE);
        repeat(&a, count, step_a);
        repeat(&d, count_of_d ? count_of_d : count, step_d);
        cublasLtMatmulPreferenceInit(&preference);
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &n_workspace, sizeof n_workspace);
        cublasLtMatmulPreferenceSetAttribute(&preference,
                                             CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &reductions, sizeof reductions);
        cublasLtMatmulPreferenceSetAttribute(&preference,
                                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                                             &alignment_d, sizeof alignment_d);
        cublasLtMatmulPreferenceSetAttribute(&preference,
                                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                             &alignment_d, sizeof alignment_d);
        cublasLtMatmulAlgoGetHeuristic(lt, &product, &a, &a, &d, &d, &preference, 1, &chosen, &n);
        printf("%d algorithms, ", n);
        if (n)
            cublasLtMatmul(lt, &product, &alpha, x, &a, x, &a, &beta, y, &d, y, &d, &chosen.algo,
                           workspace, WORKSPACE, stream);
    }
};

static void with(const std::function<void(arguments &)> &change)
{
    arguments a;

    change(a);
    a.run();
}

static void with_batch(const std::function<void(arguments &)> &change)
{
    arguments a;

    a.count = 3;
    a.step_d = SIZE * SIZE;
    a.step_bias = SIZE;
    a.alignment_d = 128;
    change(a);
    a.run();
}

static const planted_program programs[] = {
    /* correct */
    { "bf16",
      [] { multiply_with(CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION, CUDA_R_16BF); } },
    { "f32-of-bf16", [] { multiply(CUDA_R_32F); } },
    { "epilogue", [] { with([](arguments &) {}); } },
    { "epilogue-f32",
      [] {
          with([](arguments &a) {
              a.d_type = CUDA_R_32F;
              a.reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
          });
      } },
    { "bias-by-16", [] { with([](arguments &a) { a.bias = x + 4; }); } },
    { "batch", [] { multiply_batch(3, SIZE * SIZE, SIZE * SIZE, SIZE); } },
    { "batch-side-by-side", [] { multiply_batch(3, 0, SIZE, 3 * SIZE); } },
    { "batch-epilogue", [] { with_batch([](arguments &) {}); } },
    /* batches */
    { "batch-of-one-c", [] { multiply_batch(3, SIZE * SIZE, 0, SIZE); } },
    { "batch-overlap", [] { multiply_batch(3, 0, SIZE - 1, 3 * SIZE); } },
    { "batch-overlap-of-the-next-column", [] { multiply_batch(3, 0, SIZE, 3 * SIZE - 1); } },
    { "batch-too-large",
      [] { multiply_batch(N / SIZE / SIZE, 1 + SIZE * SIZE, SIZE * SIZE, SIZE); } },
    { "batch-epilogue-overlap",
      [] { with_batch([](arguments &a) { a.step_d = a.alignment_d = 16; }); } },
    { "batch-alignment", [] { with_batch([](arguments &a) { a.alignment_d = 256; }); } },
    { "batch-bias-by-8", [] { with_batch([](arguments &a) { a.step_bias = 4; }); } },
    { "batch-bias-outside", [] { with_batch([](arguments &a) { a.step_bias = N * N; }); } },
    { "batch-counts", [] { with_batch([](arguments &a) { a.count_of_d = 2; }); } },
    { "batch-count-of-8-bytes",
      [] { with_batch([](arguments &a) { a.count_bytes = sizeof(int64_t); }); } },
    /* sums in bf16 */
    { "sums-in-bf16", [] { multiply(CUDA_R_16BF); } },
    { "sums-in-bf16-again", [] { multiply_with(CUBLAS_DEFAULT_MATH, CUDA_R_16BF); } },
    { "tf32", [] { multiply_with(3, CUDA_R_32F); } },
    { "reduction-in-place",
      [] { with([](arguments &a) { a.reductions |= CUBLASLT_REDUCTION_SCHEME_INPLACE; }); } },
    { "reduction-in-bf16",
      [] { with([](arguments &a) { a.reductions |= CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE; }); } },
    /* addresses */
    { "bias-by-8", [] { with([](arguments &a) { a.bias = x + 2; }); } },
    { "bias-by-4-f32",
      [] {
          with([](arguments &a) {
              a.d_type = CUDA_R_32F;
              a.bias = x + 1;
          });
      } },
    { "bias-on-the-host", [] { with([](arguments &a) { a.bias = host; }); } },
};

int main(int argc, char **argv)
{
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaMalloc((void **)&x, N * sizeof *x);
    cudaMalloc((void **)&y, N * sizeof *y);
    cudaMalloc(&workspace, WORKSPACE);
    cudaHostAlloc((void **)&host, N * sizeof *host, cudaHostAllocDefault);
    for (int i = 0; i < N; i++)
        host[i] = 1;
    cudaMemcpyAsync(x, host, N * sizeof *x, cudaMemcpyHostToDevice, stream);
    cudaMemsetAsync(y, 0, N * sizeof *y, stream);
    cudaStreamSynchronize(stream);
    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    cublasSetWorkspace(handle, workspace, WORKSPACE);
    return planted_run(programs, argc, argv);
}
