/* kernels/cuda/blas.cu - see kernels/cuda/blas.cuh. */
#include "kernels/cuda/blas.cuh"

#include <stdlib.h>

#include "device/cuda/cuda_queue.h"

/* A GPU that has failed is for cuBLAS one that does not execute its kernels. Where the memory does
 * not suffice for a handle, there is often none: "not initialized". */
void blas_fail(struct device_queue *q, const char *what, cublasStatus_t s)
{
    struct tp_err err;

    if (cuda_queue_probe(q, what))
        return;
    if (s == CUBLAS_STATUS_ALLOC_FAILED || s == CUBLAS_STATUS_NOT_INITIALIZED) {
        cuda_queue_check(q, what, cudaErrorMemoryAllocation);
        return;
    }
    tp_fail(&err, TP_E_IO, "cuBLAS: %s failed: %s (status %d)", what, cublasGetStatusString(s),
            (int)s);
    device_fail(q->device, &err);
}

static void close_blas(void *p, bool has_failed)
{
    struct blas *b = static_cast<struct blas *>(p);

    if (!has_failed)
        (void)cublasDestroy(b->handle);
    free(b);
}

/* Without a workspace of the caller, cuBLAS allocates one in each graph that records a product. It
 * may compute parts of a product in parallel (split-K), and by default it may add those of a bf16 C
 * in bf16; then a long sum loses digits. The default math mode computes f32 in f32. */
static cublasStatus_t prepare(struct device_queue *q, cublasHandle_t handle)
{
    cublasStatus_t s = cublasSetStream(handle, cuda_queue_stream(q));
    void *workspace = device_scratch(q, BLAS_WORKSPACE_BYTES + BLAS_ROOM_BYTES);

    if (s != CUBLAS_STATUS_SUCCESS || !workspace) /* the device keeps the failure */
        return s;
    if ((s = cublasSetWorkspace(handle, workspace, BLAS_WORKSPACE_BYTES)) != CUBLAS_STATUS_SUCCESS)
        return s;
    return cublasSetMathMode(handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
}

struct blas *blas_of(struct device_queue *q)
{
    struct cuda_attachment *kept = cuda_queue_attachment(q);
    struct blas *b = static_cast<struct blas *>(kept->p);
    struct tp_err err;
    cublasStatus_t s;

    if (b)
        return b;
    if (!(b = static_cast<struct blas *>(calloc(1, sizeof *b)))) {
        tp_fail(&err, TP_E_NOMEM, "out of memory for a handle of cuBLAS");
        device_fail(q->device, &err);
        return nullptr;
    }
    if ((s = cublasCreate(&b->handle)) != CUBLAS_STATUS_SUCCESS) {
        free(b);
        blas_fail(q, "a new handle of cuBLAS", s);
        return nullptr;
    }
    kept->p = b;
    kept->close = close_blas;
    if ((s = prepare(q, b->handle)) != CUBLAS_STATUS_SUCCESS)
        blas_fail(q, "the stream, workspace or math mode of a handle", s);
    return b;
}
