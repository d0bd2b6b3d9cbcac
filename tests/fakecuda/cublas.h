/*
 * tests/fakecuda/cublas.h - what the products of the double of cuBLAS share.
 */
#ifndef TESTS_FAKECUDA_CUBLAS_H
#define TESTS_FAKECUDA_CUBLAS_H

#include <cublas_v2.h>

/* A handle. */
struct cublasContext {
    cudaStream_t stream;
    void *workspace;
};

namespace fake
{

enum { CUBLAS_WORKSPACE = 4096 }; /* what a product writes */

/* Before a product is queued: `call` without a workspace of the caller allocates, which a capture
 * forbids. By the operation: what it does with the workspace. */
void cublas_begin(const char *call, cublasHandle_t handle);
void cublas_use(void *workspace);

} // namespace fake

#endif
