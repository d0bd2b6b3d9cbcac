/*
 * tests/fakecuda/cublas.cc - cuBLAS's products as plain loops, queued like everything else. A wrong
 * argument ends the process, because NVIDIA's library need not notice it.
 */
#include <cublas_v2.h>

#include <cstring>
#include <vector>

#include "tests/fakecuda/stream.h"

static_assert(CUBLAS_STATUS_ALLOC_FAILED == 3 && CUBLAS_STATUS_INVALID_VALUE == 7 &&
                  CUBLAS_STATUS_NOT_SUPPORTED == 15 && CUBLAS_OP_T == 1 &&
                  CUBLAS_COMPUTE_32F == 68 && CUBLAS_GEMM_DEFAULT == -1 && CUDA_R_32F == 0 &&
                  CUDA_R_16BF == 14,
              "the numbers are NVIDIA's");

struct cublasContext {
    cudaStream_t stream;
};

/* A stored matrix, column-major: op(X) has rows x cols. */
struct matrix {
    char *at;
    cudaDataType type;
    int64_t ld;
    bool trans;
    int64_t rows, cols;

    int64_t stored_rows() const
    {
        return trans ? cols : rows;
    }
    int64_t stored_cols() const
    {
        return trans ? rows : cols;
    }
    int64_t width() const
    {
        return type == CUDA_R_16BF ? 2 : 4;
    }
};

static void check(const char *name, const matrix &x)
{
    const char *begin;
    size_t size, n = (size_t)(((x.stored_cols() - 1) * x.ld + x.stored_rows()) * x.width());

    if (x.type != CUDA_R_32F && x.type != CUDA_R_16BF)
        fake::report(nullptr, "cublasGemmEx: %s has the type %d, which the fake device lacks", name,
                     (int)x.type);
    if (x.ld < x.stored_rows() || x.ld < 1)
        fake::report(nullptr,
                     "cublasGemmEx: the leading dimension of %s is %lld, and it has %lld "
                     "rows",
                     name, (long long)x.ld, (long long)x.stored_rows());
    if (x.rows == 0 || x.cols == 0)
        return;
    if (!fake::is_kind(fake::DEVICE_MEMORY, x.at) ||
        !fake::memory_contains(fake::DEVICE_MEMORY, x.at, n, &begin, &size))
        fake::report(nullptr, "cublasGemmEx: %zu bytes of %s at %p are not in device memory", n,
                     name, (void *)x.at);
    if ((uintptr_t)x.at % (uintptr_t)x.width())
        fake::report(nullptr, "cublasGemmEx: %s at %p is misaligned", name, (void *)x.at);
}

static float element(const matrix &x, int64_t i)
{
    uint32_t bits;
    float f;

    if (x.type == CUDA_R_32F)
        return ((const float *)x.at)[i];
    bits = (uint32_t)((const uint16_t *)x.at)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* op(X), row-major, so that the loops below run along rows. */
static std::vector<float> load(const matrix &x)
{
    std::vector<float> y((size_t)(x.rows * x.cols));

    for (int64_t j = 0; j < x.stored_cols(); j++) {
        fake::watch_read(x.at + j * x.ld * x.width(), (size_t)(x.stored_rows() * x.width()));
        for (int64_t i = 0; i < x.stored_rows(); i++)
            y[(size_t)(x.trans ? j * x.cols + i : i * x.cols + j)] = element(x, j * x.ld + i);
    }
    return y;
}

static void multiply(const matrix &a, const matrix &b, const matrix &c, float alpha, float beta)
{
    std::vector<float> x = load(a), y = load(b), old, row((size_t)b.cols);

    if (beta != 0) /* otherwise C may have any content */
        old = load(c);
    for (int64_t j = 0; j < c.cols; j++)
        fake::watch_fill(c.at + j * c.ld * 4, (size_t)(c.rows * 4));
    for (int64_t i = 0; i < a.rows; i++) {
        std::fill(row.begin(), row.end(), 0.f);
        for (int64_t l = 0; l < a.cols; l++) {
            const float *from = &y[(size_t)(l * b.cols)], by = x[(size_t)(i * a.cols + l)];
            for (int64_t j = 0; j < b.cols; j++)
                row[(size_t)j] += by * from[j];
        }
        for (int64_t j = 0; j < b.cols; j++)
            ((float *)c.at)[j * c.ld + i] =
                alpha * row[(size_t)j] + (beta != 0 ? beta * old[(size_t)(i * b.cols + j)] : 0);
    }
}

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    *handle = new cublasContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "no error" : "an error of cuBLAS";
}

cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t transa,
                               cublasOperation_t transb, int64_t m, int64_t n, int64_t k,
                               const void *alpha, const void *A, cudaDataType Atype, int64_t lda,
                               const void *B, cudaDataType Btype, int64_t ldb, const void *beta,
                               void *C, cudaDataType Ctype, int64_t ldc,
                               cublasComputeType_t computeType, cublasGemmAlgo_t)
{
    const matrix a = { (char *)(uintptr_t)A, Atype, lda, transa != CUBLAS_OP_N, m, k };
    const matrix b = { (char *)(uintptr_t)B, Btype, ldb, transb != CUBLAS_OP_N, k, n };
    const matrix c = { (char *)C, Ctype, ldc, false, m, n };
    const float by_product = *(const float *)alpha, by_c = *(const float *)beta;

    if (m < 0 || n < 0 || k < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (computeType != CUBLAS_COMPUTE_32F || Ctype != CUDA_R_32F || Atype != Btype)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (fake::is_kind(fake::DEVICE_MEMORY, alpha) || fake::is_kind(fake::DEVICE_MEMORY, beta))
        fake::report(nullptr, "cublasGemmEx: alpha and beta are in host memory");
    check("A", a);
    check("B", b);
    check("C", c);
    fake::api_enqueue(handle->stream, "product", [=] { multiply(a, b, c, by_product, by_c); });
    return CUBLAS_STATUS_SUCCESS;
}
