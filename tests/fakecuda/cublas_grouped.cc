/*
 * tests/fakecuda/cublas_grouped.cc - cuBLAS's products of groups of matrices, as its documentation
 * of cublasGemmGroupedBatchedEx says: shapes and factors are read from host memory by the call, the
 * addresses of the matrices from device memory by the device. What the device finds wrong ends the
 * process, because NVIDIA's library cannot see it.
 */
#include <cublas_v2.h>

#include <vector>

#include "tests/fakecuda/api.h"
#include "tests/fakecuda/cublas.h"
#include "tests/fakecuda/product.h"

static const char CALL[] = "cublasGemmGroupedBatchedEx";

static int64_t n_calls;
static bool is_missing;

int64_t fake::grouped_calls()
{
    return n_calls;
}

void fake::grouped_missing(bool is_now)
{
    is_missing = is_now;
}

namespace
{

/* One product; its matrices have no addresses yet. */
struct problem {
    fake::matrix a, b, c;
    float alpha, beta;
};

/* The arrays of addresses. */
struct addresses {
    const void *const *of[3]; /* A, B, C */
    int64_t n;
};

} // namespace

static const char *const NAMES[] = { "A", "B", "C" };

/* ---- by the call ---- */

static bool is_operation(cublasOperation_t op)
{
    return op == CUBLAS_OP_N || op == CUBLAS_OP_T;
}

static bool is_supported(cudaDataType_t a, cudaDataType_t b, cudaDataType_t c,
                         cublasComputeType_t compute)
{
    return compute == CUBLAS_COMPUTE_32F && (a == CUDA_R_32F || a == CUDA_R_16BF) && a == b &&
           a == c;
}

static void check_host(const char *name, const void *p)
{
    if (fake::is_kind(fake::DEVICE_MEMORY, p))
        fake::report(nullptr, "%s: the %s are in host memory, not at %p of the device", CALL, name,
                     p);
}

static void check_addresses(const addresses &x)
{
    const size_t n_bytes = (size_t)x.n * sizeof(void *);
    const char *begin;
    size_t size;

    for (int i = 0; i < 3; i++) {
        const void *p = x.of[i];

        if (!fake::is_kind(fake::DEVICE_MEMORY, p) ||
            !fake::memory_contains(fake::DEVICE_MEMORY, p, n_bytes, &begin, &size) ||
            (uintptr_t)p % sizeof(void *))
            fake::report(nullptr,
                         "%s: the addresses of %s, %zu bytes at %p, are misaligned or not in "
                         "device memory",
                         CALL, NAMES[i], n_bytes, p);
    }
}

/* ---- by the operation ---- */

/* "If (k * AtypeSize) % 16 == 0 then ensure intptr_t(ptr) % 16 == 0", and the same for 4. */
static void check_alignment(const char *name, const fake::matrix &x, const fake::matrix &a)
{
    const int64_t k_bytes = a.cols * a.width();
    const uintptr_t of = k_bytes % 16 == 0 ? 16 : k_bytes % 4 == 0 ? 4 : 1;

    if (a.type == CUDA_R_16BF && (uintptr_t)x.at % of)
        fake::report(nullptr, "%s: %s at %p is not a multiple of %d bytes, and k is %lld", CALL,
                     name, (void *)x.at, (int)of, (long long)a.cols);
}

static const char *end_of(const fake::matrix &x)
{
    return x.at + ((x.stored_cols() - 1) * x.ld + x.stored_rows()) * x.width();
}

static bool overlap(const fake::matrix &x, const fake::matrix &y)
{
    return x.rows && x.cols && y.rows && y.cols && x.at < end_of(y) && y.at < end_of(x);
}

/* Products are computed in any order, and together. */
static void check_overlaps(const std::vector<problem> &all)
{
    for (size_t i = 0; i < all.size(); i++)
        for (size_t j = 0; j < all.size(); j++)
            if ((j < i && overlap(all[i].c, all[j].c)) || overlap(all[i].c, all[j].a) ||
                overlap(all[i].c, all[j].b))
                fake::report(nullptr, "%s: C of product %zu and a matrix of product %zu overlap",
                             CALL, i, j);
}

static char *address(const void *const *from, size_t i)
{
    return (char *)(uintptr_t)from[i];
}

static void run(std::vector<problem> all, const addresses &x)
{
    for (const void *const *array : x.of)
        fake::watch_read(array, (size_t)x.n * sizeof *array);
    for (size_t i = 0; i < all.size(); i++) {
        problem &p = all[i];
        fake::matrix *const matrices[] = { &p.a, &p.b, &p.c };

        for (int k = 0; k < 3; k++) {
            matrices[k]->at = address(x.of[k], i);
            fake::matrix_check(CALL, NAMES[k], *matrices[k]);
            check_alignment(NAMES[k], *matrices[k], p.a);
        }
    }
    check_overlaps(all);
    for (const problem &p : all)
        if (p.c.rows && p.c.cols)
            fake::product_run({ p.a, p.b, p.c, p.alpha, p.beta, nullptr, fake::STORE, {} });
}

/* ---- the call ---- */

cublasStatus_t cublasGemmGroupedBatchedEx_64(
    cublasHandle_t handle, const cublasOperation_t transa_array[],
    const cublasOperation_t transb_array[], const int64_t m_array[], const int64_t n_array[],
    const int64_t k_array[], const void *alpha_array, const void *const Aarray[],
    cudaDataType_t Atype, const int64_t lda_array[], const void *const Barray[],
    cudaDataType_t Btype, const int64_t ldb_array[], const void *beta_array, void *const Carray[],
    cudaDataType_t Ctype, const int64_t ldc_array[], int64_t group_count,
    const int64_t group_size[], cublasComputeType_t computeType)
{
    const void *const on_host[] = { transa_array, transb_array, m_array,   n_array,
                                    k_array,      alpha_array,  lda_array, ldb_array,
                                    beta_array,   ldc_array,    group_size };
    std::vector<problem> all;

    for (const void *p : on_host) {
        check_host("shapes and factors", p);
        if (!p)
            return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (group_count < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (is_missing || !is_supported(Atype, Btype, Ctype, computeType))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int64_t i = 0; i < group_count; i++) {
        const int64_t m = m_array[i], n = n_array[i], k = k_array[i];
        const bool trans_a = transa_array[i] != CUBLAS_OP_N,
                   trans_b = transb_array[i] != CUBLAS_OP_N;
        const problem one = { { nullptr, Atype, lda_array[i], trans_a, m, k },
                              { nullptr, Btype, ldb_array[i], trans_b, k, n },
                              { nullptr, Ctype, ldc_array[i], false, m, n },
                              ((const float *)alpha_array)[i],
                              ((const float *)beta_array)[i] };

        if (m < 0 || n < 0 || k < 0 || group_size[i] < 0 || !is_operation(transa_array[i]) ||
            !is_operation(transb_array[i]))
            return CUBLAS_STATUS_INVALID_VALUE;
        for (const fake::matrix *x : { &one.a, &one.b, &one.c })
            if (x->ld < 1 || x->ld < x->stored_rows())
                return CUBLAS_STATUS_INVALID_VALUE;
        all.insert(all.end(), (size_t)group_size[i], one);
    }
    const addresses x = { { Aarray, Barray, Carray }, (int64_t)all.size() };
    if (all.empty())
        return CUBLAS_STATUS_SUCCESS;
    check_addresses(x);
    fake::cublas_begin(CALL, handle, Ctype);
    if (fake::device_failure != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    fake::cublas_load({ all[0].a, all[0].b, all[0].c, 1, 0, nullptr, fake::STORE, {} }, 0, 1,
                      handle->stream);
    n_calls++;
    fake::api_enqueue(handle->stream, "grouped product", [=, workspace = handle->workspace] {
        fake::cublas_use(workspace);
        run(all, x);
    });
    return CUBLAS_STATUS_SUCCESS;
}
