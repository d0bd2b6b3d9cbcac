/*
 * tests/fakecuda/cublaslt.cc - cuBLASLt's products with a bias, with GELU or its gradient. A choice
 * of the heuristic holds for the shapes, the types and the alignment that it was asked for;
 * NVIDIA's library need not notice that others are used, so here this ends the process.
 */
#include <cublasLt.h>

#include <cstring>

#include "tests/fakecuda/api.h"
#include "tests/fakecuda/cublas.h"
#include "tests/fakecuda/product.h"
#include "tests/fakecuda/stream.h"

static_assert(
    CUBLASLT_MATMUL_DESC_TRANSA == 3 && CUBLASLT_MATMUL_DESC_TRANSB == 4 &&
        CUBLASLT_MATMUL_DESC_EPILOGUE == 7 && CUBLASLT_MATMUL_DESC_BIAS_POINTER == 8 &&
        CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE == 10 && CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT == 5 &&
        CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET == 6 &&
        CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER == 11 &&
        CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD == 12 && CUBLASLT_EPILOGUE_DEFAULT == 1 &&
        CUBLASLT_EPILOGUE_BIAS == 4 && CUBLASLT_EPILOGUE_GELU_AUX == 160 &&
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS == 164 && CUBLASLT_EPILOGUE_DGELU == 192 &&
        CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES == 1 &&
        CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK == 3 && CUBLASLT_REDUCTION_SCHEME_INPLACE == 1 &&
        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE == 2 && CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE == 4 &&
        CUBLASLT_REDUCTION_SCHEME_MASK == 7 && CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES == 5 &&
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES == 8 &&
        sizeof(cublasLtMatmulDescOpaque_t) == 256 && sizeof(cublasLtMatrixLayoutOpaque_t) == 64 &&
        sizeof(cublasLtMatmulPreferenceOpaque_t) == 64 && sizeof(cublasLtMatmulAlgo_t) == 64 &&
        sizeof(cublasLtMatmulHeuristicResult_t) == 96,
    "the numbers are NVIDIA's");

/* What the opaque structs hold here. A magic number shows that they were initialized. */
enum : uint64_t { LAYOUT = 0xfa4e01, PRODUCT = 0xfa4e02, PREFERENCE = 0xfa4e03, CHOICE = 0xfa4e04 };
enum { OPERANDS = 4 }; /* A, B, C, D */

struct stored_layout {
    uint64_t magic, rows, cols;
    int64_t ld, step; /* step: elements to the matrix of the next product */
    cudaDataType type;
    int32_t count;
};

struct stored_product {
    uint64_t magic;
    const void *bias;
    void *aux; /* the input of GELU: written, or read for the gradient */
    int64_t aux_ld, bias_step;
    int32_t trans_a, trans_b;
    uint32_t epilogue;
};

struct stored_preference {
    uint64_t magic, workspace;
    uint32_t alignment[OPERANDS], reductions;
};

struct stored_choice {
    uint64_t magic, shapes; /* shapes: a hash of all that the choice depends on */
    uint32_t alignment[OPERANDS], bias_alignment, aux_alignment;
};

/* A small part of what NVIDIA's kernels take, but enough to see races for it. */
static const size_t WORKSPACE = 1024, WORKSPACE_ALIGNMENT = 256;
static const uint32_t LEAST_ALIGNMENT = 16; /* of C and D: otherwise there is no kernel */

static int64_t n_products;
static uint32_t missing; /* an epilogue */

int64_t fake::epilogue_products()
{
    return n_products;
}

void fake::epilogue_missing(uint32_t epilogue)
{
    missing = epilogue;
}

template <typename T, typename O> static T opened(const O *o, uint64_t magic, const char *what)
{
    T t;

    static_assert(sizeof(T) <= sizeof(O), "it fits");
    memcpy(&t, o, sizeof t);
    if (t.magic != magic)
        fake::report(nullptr, "cuBLASLt: %s was not initialized", what);
    return t;
}

template <typename T, typename O> static cublasStatus_t stored(O *o, size_t size, const T &t)
{
    static_assert(sizeof(T) <= sizeof(O), "it fits");
    if (size != sizeof *o)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memset(o, 0, sizeof *o);
    memcpy(o, &t, sizeof t);
    return CUBLAS_STATUS_SUCCESS;
}

static void set(void *to, size_t size, const void *from, size_t given)
{
    if (!from || size != given)
        fake::report(nullptr, "cuBLASLt: an attribute of %zu bytes is set with %zu", size, given);
    memcpy(to, from, size);
}

/* Of addresses that begin at p and are some bytes apart. */
static uint32_t alignment_of(const void *p, int64_t apart = 0)
{
    uintptr_t at = (uintptr_t)p | (uintptr_t)apart | 256;

    return (uint32_t)(at & (~at + 1));
}

/* ---- descriptions ---- */

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t matLayout, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld)
{
    return stored(matLayout, size, stored_layout{ LAYOUT, rows, cols, ld, 0, type, 1 });
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matLayout,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void *buf, size_t sizeInBytes)
{
    stored_layout l = opened<stored_layout>(matLayout, LAYOUT, "a layout");

    if (attr == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        set(&l.count, sizeof l.count, buf, sizeInBytes);
    else if (attr == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
        set(&l.step, sizeof l.step, buf, sizeInBytes);
    else
        fake::report(nullptr, "cuBLASLt: the fake device lacks attribute %d of a layout",
                     (int)attr);
    return stored(matLayout, sizeof *matLayout, l);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t matmulDesc, size_t size,
                                               cublasComputeType_t computeType,
                                               cudaDataType_t scaleType)
{
    if (computeType != CUBLAS_COMPUTE_32F || scaleType != CUDA_R_32F)
        fake::report(nullptr, "cuBLASLt: the fake device only computes in f32");
    return stored(matmulDesc, size,
                  stored_product{ PRODUCT, nullptr, nullptr, 0, 0, CUBLAS_OP_N, CUBLAS_OP_N,
                                  CUBLASLT_EPILOGUE_DEFAULT });
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t pref, size_t size)
{
    return stored(
        pref, size,
        stored_preference{ PREFERENCE, 0, { 256, 256, 256, 256 }, CUBLASLT_REDUCTION_SCHEME_MASK });
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                              cublasLtMatmulDescAttributes_t attr, const void *buf,
                                              size_t sizeInBytes)
{
    stored_product p = opened<stored_product>(matmulDesc, PRODUCT, "a product's description");

    switch (attr) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        set(&p.trans_a, sizeof p.trans_a, buf, sizeInBytes);
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        set(&p.trans_b, sizeof p.trans_b, buf, sizeInBytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        set(&p.epilogue, sizeof p.epilogue, buf, sizeInBytes);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        set(&p.bias, sizeof p.bias, buf, sizeInBytes);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
        set(&p.bias_step, sizeof p.bias_step, buf, sizeInBytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        set(&p.aux, sizeof p.aux, buf, sizeInBytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        set(&p.aux_ld, sizeof p.aux_ld, buf, sizeInBytes);
        break;
    default:
        fake::report(nullptr, "cuBLASLt: the fake device lacks attribute %d of a product",
                     (int)attr);
    }
    return stored(matmulDesc, sizeof *matmulDesc, p);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *buf, size_t sizeInBytes)
{
    stored_preference p = opened<stored_preference>(pref, PREFERENCE, "a preference");
    const int operand = (int)attr - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;

    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        set(&p.workspace, sizeof p.workspace, buf, sizeInBytes);
    else if (attr == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        set(&p.reductions, sizeof p.reductions, buf, sizeInBytes);
    else if (operand >= 0 && operand < OPERANDS)
        set(&p.alignment[operand], sizeof p.alignment[operand], buf, sizeInBytes);
    else
        fake::report(nullptr, "cuBLASLt: the fake device lacks preference %d", (int)attr);
    return stored(pref, sizeof *pref, p);
}

/* ---- the choice ---- */

struct described {
    stored_product product;
    stored_layout of[OPERANDS];
};

static described describe(cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                          cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                          cublasLtMatrixLayout_t d)
{
    const cublasLtMatrixLayout_t layouts[OPERANDS] = { a, b, c, d };
    described x = { opened<stored_product>(product, PRODUCT, "a product's description"), {} };

    for (int i = 0; i < OPERANDS; i++)
        x.of[i] = opened<stored_layout>(layouts[i], LAYOUT, "a layout");
    for (const stored_layout &l : x.of)
        if (l.count != x.of[3].count || l.count < 1)
            fake::report(nullptr, "cuBLASLt: %d matrices of a batch of %d products", (int)l.count,
                         (int)x.of[3].count);
    return x;
}

static uint64_t shapes_of(const described &x)
{
    uint64_t h = 14695981039346656037u;
    const auto add = [&h](uint64_t n) { h = (h ^ n) * 1099511628211u; };

    add((uint64_t)x.product.trans_a), add((uint64_t)x.product.trans_b), add(x.product.epilogue);
    add((uint64_t)x.product.aux_ld), add((uint64_t)x.product.bias_step);
    for (const stored_layout &l : x.of)
        add(l.rows), add(l.cols), add((uint64_t)l.ld), add((uint64_t)l.type), add((uint64_t)l.step),
            add((uint64_t)l.count);
    return h;
}

static fake::then after(const stored_product &p)
{
    if (p.epilogue == CUBLASLT_EPILOGUE_DGELU)
        return fake::GELU_GRADIENT;
    return p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS
               ? fake::GELU
               : fake::STORE;
}

static bool has_bias(const stored_product &p)
{
    return p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static int64_t width(cudaDataType type)
{
    return type == CUDA_R_16BF ? 2 : 4;
}

/* Bytes from the bias of a product to that of the next one. */
static int64_t bias_apart(const described &x)
{
    return x.of[3].count > 1 ? x.product.bias_step * width(x.of[3].type) : 0;
}

static uint32_t bias_alignment_of(const described &x)
{
    return alignment_of(x.product.bias, bias_apart(x));
}

/* Parts of a product that are computed in parallel (split-K) are added in the type of D by some
 * algorithms, unless the preference leaves them out. */
static void check_reductions(const described &x, const stored_preference &p)
{
    const uint32_t rounds =
        CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;

    if (x.of[3].type == CUDA_R_16BF && (p.reductions & rounds))
        fake::report(nullptr,
                     "cuBLASLt: the preference allows algorithms that add parts of a bf16 "
                     "D in bf16 (reduction schemes %u)",
                     p.reductions);
}

/* Without a bias or GELU, cublasGemmEx is the call. NVIDIA's GELU may take an f32 D; its input
 * would have that type too, which the product does not use. */
static bool is_supported(const described &x, const stored_preference &p)
{
    const bool has_aux = after(x.product) != fake::STORE;

    if (x.of[3].count > 1 && (has_aux || fake::batches_are_missing()))
        return false;
    if (has_aux &&
        (x.of[3].type != CUDA_R_16BF || x.product.aux_ld % 8 != 0 ||
         x.product.aux_ld < (int64_t)x.of[3].rows || alignment_of(x.product.aux) < LEAST_ALIGNMENT))
        return false;
    return (has_aux || has_bias(x.product)) && p.workspace >= WORKSPACE &&
           p.alignment[2] >= LEAST_ALIGNMENT && p.alignment[3] >= LEAST_ALIGNMENT;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t preference, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int *returnAlgoCount)
{
    const described x = describe(operationDesc, Adesc, Bdesc, Cdesc, Ddesc);
    const stored_preference p = opened<stored_preference>(preference, PREFERENCE, "a preference");
    cublasLtMatmulHeuristicResult_t *to = &heuristicResultsArray[0];
    stored_choice choice = {
        CHOICE, shapes_of(x), {}, bias_alignment_of(x), alignment_of(x.product.aux)
    };

    *returnAlgoCount = 0;
    if (requestedAlgoCount < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    check_reductions(x, p);
    if (!is_supported(x, p) || x.product.epilogue == missing) /* NVIDIA's library says either */
        return fake::random_below(2) ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    memcpy(choice.alignment, p.alignment, sizeof choice.alignment);
    memset(to, 0, sizeof *to);
    to->workspaceSize = WORKSPACE;
    to->state = CUBLAS_STATUS_SUCCESS;
    *returnAlgoCount = 1;
    return stored(&to->algo, sizeof to->algo, choice);
}

/* ---- the product ---- */

static fake::matrix operand(const described &x, int i, const void *at, bool trans)
{
    const stored_layout &l = x.of[i];
    const int64_t rows = (int64_t)l.rows, cols = (int64_t)l.cols;

    return { (char *)(uintptr_t)at, l.type, l.ld, trans, trans ? cols : rows, trans ? rows : cols };
}

/* Bytes from the matrix of a product to that of the next one. */
static int64_t apart(const described &x, int i)
{
    return x.of[i].count > 1 ? x.of[i].step * width(x.of[i].type) : 0;
}

static void check_choice(const described &x, const stored_choice &choice, const void *const *at)
{
    if (choice.shapes != shapes_of(x))
        fake::report(nullptr, "cublasLtMatmul: the algorithm was chosen for another product");
    for (int i = 0; i < OPERANDS; i++)
        if (alignment_of(at[i], apart(x, i)) < choice.alignment[i])
            fake::report(
                nullptr,
                "cublasLtMatmul: %c at %p, or one of a batch, is not a multiple of %u, for which "
                "the algorithm was chosen",
                "ABCD"[i], at[i], choice.alignment[i]);
    if (alignment_of(x.product.aux) < choice.aux_alignment)
        fake::report(
            nullptr,
            "cublasLtMatmul: the input of GELU at %p is not a multiple of %u, for which the "
            "algorithm was chosen",
            x.product.aux, choice.aux_alignment);
    if (bias_alignment_of(x) < choice.bias_alignment)
        fake::report(nullptr,
                     "cublasLtMatmul: the bias at %p is not a multiple of %u, for which the "
                     "algorithm was chosen",
                     x.product.bias, choice.bias_alignment);
}

static void check_room(const char *what, const void *p, size_t n)
{
    const char *begin;
    size_t size;

    if (!fake::is_kind(fake::DEVICE_MEMORY, p) ||
        !fake::memory_contains(fake::DEVICE_MEMORY, p, n, &begin, &size))
        fake::report(nullptr, "cublasLtMatmul: %zu bytes of %s at %p are not in device memory", n,
                     what, p);
}

static void check_shapes(const fake::product &p, const fake::product_batch &batch)
{
    const bool is_equal = p.a.rows == p.c.rows && p.b.cols == p.c.cols && p.a.cols == p.b.rows;

    if (!is_equal)
        fake::report(nullptr,
                     "cublasLtMatmul: a product of %lld x %lld and %lld x %lld is not %lld x %lld",
                     (long long)p.a.rows, (long long)p.a.cols, (long long)p.b.rows,
                     (long long)p.b.cols, (long long)p.c.rows, (long long)p.c.cols);
    if ((p.c.type != CUDA_R_32F && p.c.type != p.a.type) || p.a.type != p.b.type)
        fake::report(nullptr, "cublasLtMatmul: the fake device lacks this combination of types");
    fake::product_check("cublasLtMatmul", p, batch);
}

static void check_biases(const fake::product &p, const fake::product_batch &batch)
{
    for (int64_t i = 0; i < batch.count && p.bias; i++) {
        const void *bias = fake::product_of(p, batch, i).bias;

        if (alignment_of(bias) < 16)
            fake::report(nullptr, "cublasLtMatmul: the bias at %p is not a multiple of 16 bytes",
                         bias);
        check_room("the bias", bias, (size_t)(p.c.rows * p.c.width()));
    }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t computeDesc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t Adesc, const void *B,
                              cublasLtMatrixLayout_t Bdesc, const void *beta, const void *C,
                              cublasLtMatrixLayout_t Cdesc, void *D, cublasLtMatrixLayout_t Ddesc,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspaceSizeInBytes, cudaStream_t stream)
{
    const described x = describe(computeDesc, Adesc, Bdesc, Cdesc, Ddesc);
    const void *const at[OPERANDS] = { A, B, C, D };

    if (fake::is_kind(fake::DEVICE_MEMORY, alpha) || fake::is_kind(fake::DEVICE_MEMORY, beta))
        fake::report(nullptr, "cublasLtMatmul: alpha and beta are in host memory");
    const fake::product p = { operand(x, 0, A, x.product.trans_a != CUBLAS_OP_N),
                              operand(x, 1, B, x.product.trans_b != CUBLAS_OP_N),
                              operand(x, 3, D, false),
                              *(const float *)alpha,
                              *(const float *)beta,
                              has_bias(x.product) ? x.product.bias : nullptr,
                              after(x.product),
                              { (char *)x.product.aux, x.of[3].type, x.product.aux_ld, false,
                                (int64_t)x.of[3].rows, (int64_t)x.of[3].cols } };
    const fake::product_batch batch = { x.of[3].count, apart(x, 0), apart(x, 1), apart(x, 3),
                                        bias_apart(x) };
    check_choice(x, opened<stored_choice>(algo, CHOICE, "an algorithm"), at);
    check_shapes(p, batch);
    if (C != D || memcmp(&x.of[2], &x.of[3], sizeof x.of[2]) != 0)
        fake::report(nullptr, "cublasLtMatmul: in the fake device C is D");
    if (p.after)
        fake::matrix_check("cublasLtMatmul", "the input of GELU", p.u);
    if (p.after && (p.beta != 0 || p.u.at == p.c.at))
        fake::report(nullptr, "cublasLtMatmul: in the fake device GELU has beta 0, and D apart");
    check_biases(p, batch);
    if (workspaceSizeInBytes < WORKSPACE)
        return CUBLAS_STATUS_INVALID_VALUE;
    check_room("the workspace", workspace, workspaceSizeInBytes);
    if (alignment_of(workspace) < WORKSPACE_ALIGNMENT)
        fake::report(nullptr, "cublasLtMatmul: the workspace at %p is misaligned", workspace);
    if (fake::device_failure != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    fake::cublas_load(p, x.product.epilogue, batch.count, stream);
    n_products++;
    if (batch.count > 1)
        fake::batch_taken();
    fake::api_enqueue(
        stream,
        batch.count > 1 ? "products of a batch with an epilogue" : "product with an epilogue", [=] {
            fake::watch_fill(workspace, WORKSPACE);
            for (int64_t i = 0; i < batch.count; i++)
                fake::product_run(fake::product_of(p, batch, i));
        });
    return CUBLAS_STATUS_SUCCESS;
}
