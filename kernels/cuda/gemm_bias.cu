/*
 * kernels/cuda/gemm_bias.cu - see kernels/cuda/gemm_bias.cuh. As in gemm.cu, cuBLASLt sees the
 * transpose of each matrix, so its bias has an element for each row of its result.
 *
 * cuBLASLt's GELU is the form with tanh, as in kernels/activation.h. It reads and writes its inputs
 * in the type of C.
 *
 * Its epilogues with the gradient of a bias are not used: of cuBLAS 13's kernels for Hopper and
 * bf16, none adds columns. So BGRADA and BGRADB read a matrix again, slower than bias.cu does, and
 * DGELU_BGRAD would: the machine code of its kernels with GELU's gradient has no such sum.
 */
#include "kernels/cuda/gemm_bias.cuh"

#include <cublasLt.h>

#include "kernels/cuda/blas.cuh"
#include "kernels/cuda/launch.cuh"

/* A product as cuBLASLt describes it: D = op(A) op(B), column by column. C and D are the same. */
struct description {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    cublasLtMatmulPreferenceOpaque_t preference;
};

#define BLAS_TRY(call)                        \
    do {                                      \
        cublasStatus_t status_ = (call);      \
        if (status_ != CUBLAS_STATUS_SUCCESS) \
            return status_;                   \
    } while (0)

template <typename T>
static cublasStatus_t set(cublasLtMatmulDescOpaque_t *product, cublasLtMatmulDescAttributes_t name,
                          T value)
{
    return cublasLtMatmulDescSetAttribute(product, name, &value, sizeof value);
}

template <typename T>
static cublasStatus_t prefer(cublasLtMatmulPreferenceOpaque_t *preference,
                             cublasLtMatmulPreferenceAttributes_t name, T value)
{
    return cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value);
}

static int64_t products_of(const struct gemm *g)
{
    return g->batch.count ? g->batch.count : 1;
}

/* The largest power of two that divides the addresses of the matrices of all products, at most 256:
 * the first is at p, and they are `step` elements apart. */
static uint32_t alignment(const struct gemm *g, const void *p, int64_t step, enum dtype type)
{
    const int64_t apart = products_of(g) > 1 ? step * dtype_bytes(type) : 0;
    const uintptr_t at = reinterpret_cast<uintptr_t>(p) | static_cast<uintptr_t>(apart) | 256;

    return static_cast<uint32_t>(at & (~at + 1));
}

static uint32_t epilogue_of(const struct gemm *g)
{
    if (g->epilogue == GEMM_EPILOGUE_GELU)
        return g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return g->epilogue == GEMM_EPILOGUE_DGELU ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_BIAS;
}

/* The address of each bias must be a multiple of 16, which the heuristic need not check, as it
 * knows no address but this one. So must be that of GELU's input, and the distance between its rows
 * a multiple of 8. */
static bool has_epilogue(const struct gemm *g, const void *bias)
{
    return alignment(g, bias, g->batch.step_bias, g->c_type) >= 16 &&
           (g->epilogue == GEMM_EPILOGUE_NONE ||
            (g->n % 8 == 0 && alignment(g, g->gelu_input, 0, DTYPE_BF16) >= 16));
}

static cublasStatus_t describe_product(cublasLtMatmulDescOpaque_t *product, const struct gemm *g,
                                       const void *bias)
{
    const int32_t trans_a = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t trans_b = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;

    BLAS_TRY(cublasLtMatmulDescInit(product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    BLAS_TRY(set(product, CUBLASLT_MATMUL_DESC_TRANSA, trans_a));
    BLAS_TRY(set(product, CUBLASLT_MATMUL_DESC_TRANSB, trans_b));
    BLAS_TRY(set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(g)));
    if (g->epilogue) {
        BLAS_TRY(set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, g->gelu_input));
        BLAS_TRY(set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g->n));
    }
    if (!g->bias)
        return CUBLAS_STATUS_SUCCESS;
    if (g->batch.count)
        BLAS_TRY(set(product, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, g->batch.step_bias));
    return set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
}

static cublasStatus_t layout(cublasLtMatrixLayoutOpaque_t *to, cudaDataType type, bool trans,
                             int64_t rows, int64_t cols, int64_t ld)
{
    return cublasLtMatrixLayoutInit(to, type, (uint64_t)(trans ? cols : rows),
                                    (uint64_t)(trans ? rows : cols), ld);
}

/* Each product of the batch has a matrix of this layout, `step` elements after the one before. */
static cublasStatus_t repeat(cublasLtMatrixLayoutOpaque_t *to, const struct gemm_batch *batch,
                             int64_t step)
{
    const int32_t count = batch->count;

    if (!count)
        return CUBLAS_STATUS_SUCCESS;
    BLAS_TRY(cublasLtMatrixLayoutSetAttribute(to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                              sizeof count));
    return cublasLtMatrixLayoutSetAttribute(to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                            sizeof step);
}

/* cuBLASLt expects 256 bytes where it is not told another alignment. Of the ways to add the parts
 * of a product that are computed in parallel (split-K), two add them in the type of C. */
static cublasStatus_t describe_preference(cublasLtMatmulPreferenceOpaque_t *to,
                                          const struct gemm *g)
{
    const struct gemm_batch *b = &g->batch;
    const uint32_t of_c = alignment(g, g->c, b->step_c, g->c_type);

    BLAS_TRY(cublasLtMatmulPreferenceInit(to));
    BLAS_TRY(prefer(to, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)BLAS_WORKSPACE_BYTES));
    if (g->c_type == DTYPE_BF16)
        BLAS_TRY(prefer(to, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                        (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    BLAS_TRY(prefer(to, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                    alignment(g, g->b, b->step_b, g->type)));
    BLAS_TRY(prefer(to, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                    alignment(g, g->a, b->step_a, g->type)));
    BLAS_TRY(prefer(to, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_c));
    return prefer(to, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_c);
}

static cublasStatus_t describe(struct description *d, const struct gemm *g, const void *bias)
{
    const cudaDataType type = blas_type(g->type);

    BLAS_TRY(describe_product(&d->product, g, bias));
    BLAS_TRY(layout(&d->a, type, g->trans_b, g->n, g->k, g->ldb));
    BLAS_TRY(layout(&d->b, type, g->trans_a, g->k, g->m, g->lda));
    BLAS_TRY(layout(&d->d, blas_type(g->c_type), false, g->n, g->m, g->ldc));
    BLAS_TRY(repeat(&d->a, &g->batch, g->batch.step_b));
    BLAS_TRY(repeat(&d->b, &g->batch, g->batch.step_a));
    BLAS_TRY(repeat(&d->d, &g->batch, g->batch.step_c));
    return describe_preference(&d->preference, g);
}

/* What cuBLASLt can read as the bias; NULL: it has to be rounded. */
static const void *bias_of(const struct gemm *g)
{
    if (g->c_type != DTYPE_BF16)
        return g->bias;
    return g->rounded_bias && alignment(g, g->rounded_bias, g->batch.step_bias, DTYPE_BF16) >= 16
               ? g->rounded_bias
               : nullptr;
}

/* The elements from the first product's bias to the end of the last one's. */
static int64_t biases_of(const struct gemm *g)
{
    return (products_of(g) - 1) * g->batch.step_bias + g->n;
}

/* cuBLASLt remembers what it chose for a description, so it is asked each time. Its bias has the
 * type of C: for a bf16 C it is rounded to the end of the workspace, if that has not been done. A
 * batch does not make the scratch larger than its products would: it is refused then. */
cublasStatus_t gemm_with_epilogue(struct device_queue *q, cublasHandle_t handle,
                                  const struct gemm *g)
{
    const cublasLtHandle_t lt = reinterpret_cast<cublasLtHandle_t>(handle);
    struct description d;
    cublasLtMatmulHeuristicResult_t chosen;
    const void *bias = bias_of(g);
    const int64_t room = g->bias && !bias ? biases_of(g) * dtype_bytes(DTYPE_BF16) : 0;
    const bool fits = !g->batch.count || room <= (int64_t)BLAS_ROOM_BYTES;
    char *workspace =
        static_cast<char *>(device_scratch(q, (int64_t)BLAS_WORKSPACE_BYTES + (fits ? room : 0)));
    char *after = workspace + BLAS_WORKSPACE_BYTES;
    const struct cast round = { after, DTYPE_BF16, g->bias, DTYPE_F32, biases_of(g) };
    int n = 0;

    if (room)
        bias = after;
    if (!fits || !has_epilogue(g, bias))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!workspace) /* the device keeps the failure */
        return CUBLAS_STATUS_SUCCESS;
    BLAS_TRY(describe(&d, g, bias));
    if (cublasLtMatmulAlgoGetHeuristic(lt, &d.product, &d.a, &d.b, &d.d, &d.d, &d.preference, 1,
                                       &chosen, &n) != CUBLAS_STATUS_SUCCESS ||
        n == 0 || chosen.state != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (room)
        cuda_run_cast(q, &round);
    return cublasLtMatmul(lt, &d.product, &g->alpha, g->b, &d.a, g->a, &d.b, &g->beta, g->c, &d.d,
                          g->c, &d.d, &chosen.algo, workspace, chosen.workspaceSize,
                          cuda_queue_stream(q));
}
