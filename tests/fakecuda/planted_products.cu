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
        cublasLtMatrixLayoutInit(&a, CUDA_R_16BF, SIZE, SIZE, SIZE);
        cublasLtMatrixLayoutInit(&d, d_type, SIZE, SIZE, SIZE);
        cublasLtMatmulPreferenceInit(&preference);
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &n_workspace, sizeof n_workspace);
        cublasLtMatmulPreferenceSetAttribute(&preference,
                                             CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &reductions, sizeof reductions);
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
