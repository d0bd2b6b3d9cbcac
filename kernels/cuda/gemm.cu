/*
 * kernels/cuda/gemm.cu - see kernels/gemm.h. By cuBLAS (blas.cuh). A product with a bias or GELU is
 * cuBLASLt's, where it has one (gemm_bias.cuh).
 *
 * cuBLAS stores matrices column by column, so it sees the transpose of each matrix here:
 * C = op(A) op(B) is computed as C^T = op(B)^T op(A)^T. f32 is computed in f32, not in TF32.
 */
#include "kernels/cuda/blas.cuh"
#include "kernels/cuda/gemm_bias.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

/* C = beta C; C is not read when beta is 0. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gemm_scale_kernel(const __grid_constant__ struct gemm g)
{
    for (int64_t r = blockIdx.x; r < g.m; r += gridDim.x)
        for (int64_t i = threadIdx.x; i < g.n; i += LAUNCH_THREADS) {
            const int64_t at = r * g.ldc + i;

            launch_store(g.c, g.c_type, at,
                         g.beta == 0 ? 0 : g.beta * launch_load(g.c, g.c_type, at));
        }
}

/* Each row of C += bias. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gemm_bias_kernel(const __grid_constant__ struct gemm g)
{
    for (int64_t r = blockIdx.x; r < g.m; r += gridDim.x)
        for (int64_t i = threadIdx.x; i < g.n; i += LAUNCH_THREADS) {
            const int64_t at = r * g.ldc + i;

            launch_store(g.c, g.c_type, at, launch_load(g.c, g.c_type, at) + g.bias[i]);
        }
}

/* The product without its bias, or all products of a batch. */
static cublasStatus_t multiply(cublasHandle_t handle, const struct gemm *g)
{
    const cudaDataType type = blas_type(g->type), c_type = blas_type(g->c_type);
    const cublasOperation_t trans_a = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t trans_b = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const struct gemm_batch *batch = &g->batch;

    if (batch->count)
        return cublasGemmStridedBatchedEx_64(
            handle, trans_a, trans_b, g->n, g->m, g->k, &g->alpha, g->b, type, g->ldb,
            batch->step_b, g->a, type, g->lda, batch->step_a, &g->beta, g->c, c_type, g->ldc,
            batch->step_c, batch->count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    return cublasGemmEx_64(handle, trans_a, trans_b, g->n, g->m, g->k, &g->alpha, g->b, type,
                           g->ldb, g->a, type, g->lda, &g->beta, g->c, c_type, g->ldc,
                           CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

static void one_product(struct device_queue *q, const struct gemm *g);

/* GELU, or its gradient, in a kernel of its own. */
static void multiply_apart(struct device_queue *q, const struct gemm *g)
{
    const struct activation_forward forward = { g->c,        DTYPE_BF16, g->gelu_input,
                                                g->m * g->n, DTYPE_BF16, ACTIVATION_GELU_TANH };
    const struct activation_backward backward = {
        g->c, DTYPE_BF16, g->c, g->gelu_input, g->m * g->n, DTYPE_BF16, ACTIVATION_GELU_TANH
    };
    struct gemm one = *g;

    one.epilogue = GEMM_EPILOGUE_NONE;
    if (g->epilogue == GEMM_EPILOGUE_GELU)
        one.c = g->gelu_input;
    one_product(q, &one);
    if (g->epilogue == GEMM_EPILOGUE_GELU)
        cuda_run_activation_forward(q, &forward);
    else
        cuda_run_activation_backward(q, &backward);
}

static void one_product(struct device_queue *q, const struct gemm *g)
{
    struct blas *blas;
    cublasStatus_t s = CUBLAS_STATUS_NOT_SUPPORTED;

    if (g->m == 0 || g->n == 0)
        return;
    if (g->epilogue && (g->k == 0 || g->alpha == 0)) {
        multiply_apart(q, g);
        return;
    }
    if (g->k == 0 || g->alpha == 0) {
        if (g->beta != 1)
            launch_rows(q, "a product", g->m, gemm_scale_kernel, *g);
    } else {
        if (!cuda_queue_begin(q) || !(blas = blas_of(q)))
            return;
        if (g->bias || g->epilogue)
            s = gemm_with_epilogue(q, blas->handle, g);
        if (s == CUBLAS_STATUS_SUCCESS)
            return;
        if (g->epilogue) {
            multiply_apart(q, g);
            return;
        }
        if (s == CUBLAS_STATUS_NOT_SUPPORTED)
            s = multiply(blas->handle, g);
        if (s != CUBLAS_STATUS_SUCCESS) {
            blas_fail(q, "a product", s);
            return;
        }
    }
    if (g->bias)
        launch_rows(q, "a bias", g->m, gemm_bias_kernel, *g);
}

/* All products of a batch in one call. Whether they have been queued, or have failed: then the
 * device keeps the failure. */
static bool all_products(struct device_queue *q, const struct gemm *g)
{
    struct blas *blas;
    cublasStatus_t s;

    if (!g->batch.together || g->epilogue || g->m == 0 || g->n == 0 || g->k == 0 || g->alpha == 0)
        return false;
    if (!cuda_queue_begin(q) || !(blas = blas_of(q)))
        return true;
    s = g->bias ? gemm_with_epilogue(q, blas->handle, g) : multiply(blas->handle, g);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED)
        return false;
    if (s != CUBLAS_STATUS_SUCCESS)
        blas_fail(q, "products of a batch", s);
    return true;
}

void cuda_run_gemm(struct device_queue *q, const struct gemm *g)
{
    struct tp_err err;

    if ((g->type != DTYPE_F32 && g->type != DTYPE_BF16) ||
        (g->c_type != DTYPE_F32 && g->c_type != g->type) ||
        (g->epilogue && g->c_type != DTYPE_BF16)) {
        tp_fail(&err, TP_E_INTERNAL, "a product of %s matrices is not %s", dtype_name(g->type),
                g->c_type == DTYPE_F32 ? "f32 or bf16" : dtype_name(g->c_type));
        device_fail(q->device, &err);
        return;
    }
    if (!g->batch.count)
        one_product(q, g);
    else if (all_products(q, g))
        return;
    for (int64_t i = 0; i < g->batch.count; i++) {
        struct gemm one = gemm_product(g, i);

        one_product(q, &one);
    }
}
