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
    cublasMath_t math;
};

namespace fake
{

struct product;

enum { CUBLAS_WORKSPACE = 4096 }; /* what a product writes */

/* Before a product with a C of this type is queued: `call` without a workspace of the caller
 * allocates, which a capture forbids; and cuBLAS may add the parts of a bf16 product in bf16,
 * unless the handle's math mode disallows that. By the operation: what it does with the workspace.
 */
void cublas_begin(const char *call, cublasHandle_t handle, cudaDataType c);
void cublas_use(void *workspace);

/* Before products are queued: their kernel is loaded if none had this shape and number, and then
 * the host may wait for all that is queued, also with CUDA_MODULE_LOADING=EAGER. */
void cublas_load(const struct product &p, uint32_t epilogue, int64_t count, cudaStream_t s);

/* Whether there is no kernel for batches; and one has been taken. */
bool batches_are_missing();
void batch_taken();

} // namespace fake

#endif
