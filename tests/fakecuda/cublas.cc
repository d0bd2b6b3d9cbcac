/*
 * tests/fakecuda/cublas.cc - cuBLAS's products, queued like everything else. A wrong argument ends
 * the process, because NVIDIA's library need not notice it.
 */
#include "tests/fakecuda/cublas.h"

#include <array>
#include <set>
#include <string>

#include "tests/fakecuda/api.h"
#include "tests/fakecuda/graph.h"
#include "tests/fakecuda/handle.h"
#include "tests/fakecuda/product.h"
#include "tests/fakecuda/stream.h"

static_assert(CUBLAS_STATUS_NOT_INITIALIZED == 1 && CUBLAS_STATUS_ALLOC_FAILED == 3 &&
                  CUBLAS_STATUS_INVALID_VALUE == 7 && CUBLAS_STATUS_EXECUTION_FAILED == 13 &&
                  CUBLAS_STATUS_NOT_SUPPORTED == 15 && CUBLAS_OP_T == 1 &&
                  CUBLAS_DEFAULT_MATH == 0 &&
                  CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION == 16 &&
                  CUBLAS_COMPUTE_32F == 68 && CUBLAS_GEMM_DEFAULT == -1 && CUDA_R_32F == 0 &&
                  CUDA_R_16BF == 14,
              "the numbers are NVIDIA's");

static int64_t n_batches;
static bool batches_missing;

int64_t fake::batched_calls()
{
    return n_batches;
}

void fake::batched_missing(bool is_now)
{
    batches_missing = is_now;
}

bool fake::batches_are_missing()
{
    return batches_missing;
}

void fake::batch_taken()
{
    n_batches++;
}

/* A small part of what NVIDIA's handle takes. */
static const size_t HANDLE = 4096;

/* Both allocate, or free, so the host may wait; cuBLAS's documentation says it of cublasDestroy.
 * Without memory, or after a failure of the GPU, NVIDIA's handle is "not initialized". */
cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    fake::graph_forbids("cublasCreate");
    fake::api_wait_by_chance();
    if (fake::device_failure != cudaSuccess || fake::api_memory_left() < HANDLE)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new cublasContext();
    fake::handle_created(*handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    (void)cudaDeviceSynchronize();
    fake::handle_destroyed(handle);
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->workspace = nullptr; /* as NVIDIA's library does */
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t n)
{
    const char *begin;
    size_t size;

    if (!fake::is_kind(fake::DEVICE_MEMORY, workspace) ||
        !fake::memory_contains(fake::DEVICE_MEMORY, workspace, n, &begin, &size) ||
        (uintptr_t)workspace % 256 || n < fake::CUBLAS_WORKSPACE)
        fake::report(nullptr,
                     "cublasSetWorkspace: %zu bytes at %p are too few, misaligned, or no "
                     "device memory",
                     n, workspace);
    handle->workspace = workspace;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    if (mode & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)
        fake::report(nullptr,
                     "cublasSetMathMode: f32 products are to be in f32, which mode %d "
                     "does not say",
                     (int)mode);
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

void fake::cublas_begin(const char *call, cublasHandle_t handle, cudaDataType c)
{
    const std::string what = std::string(call) + " without cublasSetWorkspace, which allocates,";

    if (!handle->workspace)
        graph_forbids(what.c_str());
    if (c == CUDA_R_16BF && !(handle->math & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION))
        report(nullptr,
               "%s: cuBLAS may add parts of a bf16 C in bf16; cublasSetMathMode forbids it", call);
}

/* CUDA_MODULE_LOADING is for the kernels that a library registers when it is loaded. cuBLASLt,
 * which multiplies for cuBLAS too, loads its own when it needs them (cuLibraryLoadData). */
void fake::cublas_load(const product &p, uint32_t epilogue, int64_t count, cudaStream_t s)
{
    static auto &loaded = *new std::set<std::array<int64_t, 10>>;
    api_call call;
    const bool is_new = loaded
                            .insert({ p.a.rows, p.a.cols, p.c.cols, p.a.trans, p.b.trans, p.a.type,
                                      p.c.type, (int64_t)epilogue, p.beta != 0, count })
                            .second;

    if (is_new && !(s && s->capture))
        run_by_chance();
}

void fake::cublas_use(void *workspace)
{
    if (workspace)
        watch_fill(workspace, CUBLAS_WORKSPACE);
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "no error" : "an error of cuBLAS";
}

/* Products of any number, for both calls. */
static cublasStatus_t multiply(const char *call, cublasHandle_t handle, const fake::product &shapes,
                               const void *alpha, const void *beta,
                               const fake::product_batch &batch, cublasComputeType_t compute)
{
    fake::product p = shapes;

    if (p.c.rows < 0 || p.c.cols < 0 || p.a.cols < 0 || batch.count < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (compute != CUBLAS_COMPUTE_32F || (p.c.type != CUDA_R_32F && p.c.type != p.a.type) ||
        p.a.type != p.b.type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (fake::is_kind(fake::DEVICE_MEMORY, alpha) || fake::is_kind(fake::DEVICE_MEMORY, beta))
        fake::report(nullptr, "%s: alpha and beta are in host memory", call);
    p.alpha = *(const float *)alpha;
    p.beta = *(const float *)beta;
    if (fake::device_failure != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    fake::product_check(call, p, batch);
    fake::cublas_begin(call, handle, p.c.type);
    fake::cublas_load(p, 0, batch.count, handle->stream);
    fake::api_enqueue(handle->stream, batch.count > 1 ? "products of a batch" : "product",
                      [=, workspace = handle->workspace] {
                          fake::cublas_use(workspace);
                          for (int64_t i = 0; i < batch.count; i++)
                              fake::product_run(fake::product_of(p, batch, i));
                      });
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t transa,
                               cublasOperation_t transb, int64_t m, int64_t n, int64_t k,
                               const void *alpha, const void *A, cudaDataType Atype, int64_t lda,
                               const void *B, cudaDataType Btype, int64_t ldb, const void *beta,
                               void *C, cudaDataType Ctype, int64_t ldc,
                               cublasComputeType_t computeType, cublasGemmAlgo_t)
{
    const fake::matrix a = { (char *)(uintptr_t)A, Atype, lda, transa != CUBLAS_OP_N, m, k };
    const fake::matrix b = { (char *)(uintptr_t)B, Btype, ldb, transb != CUBLAS_OP_N, k, n };
    const fake::matrix c = { (char *)C, Ctype, ldc, false, m, n };

    return multiply("cublasGemmEx", handle, { a, b, c, 0, 0, nullptr, fake::STORE, {} }, alpha,
                    beta, {}, computeType);
}

/* Strides are in elements. */
cublasStatus_t cublasGemmStridedBatchedEx_64(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int64_t m, int64_t n,
    int64_t k, const void *alpha, const void *A, cudaDataType Atype, int64_t lda,
    long long int strideA, const void *B, cudaDataType Btype, int64_t ldb, long long int strideB,
    const void *beta, void *C, cudaDataType Ctype, int64_t ldc, long long int strideC,
    int64_t batchCount, cublasComputeType_t computeType, cublasGemmAlgo_t)
{
    const fake::matrix a = { (char *)(uintptr_t)A, Atype, lda, transa != CUBLAS_OP_N, m, k };
    const fake::matrix b = { (char *)(uintptr_t)B, Btype, ldb, transb != CUBLAS_OP_N, k, n };
    const fake::matrix c = { (char *)C, Ctype, ldc, false, m, n };
    const fake::product_batch batch = { batchCount, strideA * a.width(), strideB * b.width(),
                                        strideC * c.width(), 0 };

    if (fake::batches_are_missing())
        return CUBLAS_STATUS_NOT_SUPPORTED;
    fake::batch_taken();
    return multiply("cublasGemmStridedBatchedEx", handle,
                    { a, b, c, 0, 0, nullptr, fake::STORE, {} }, alpha, beta, batch, computeType);
}
