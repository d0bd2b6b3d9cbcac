/*
 * kernels/cuda/grouped_gemm.cu - see kernels/grouped_gemm.h. The products of all groups are one
 * call of cublasGemmGroupedBatchedEx. It has no f32 results of bf16 matrices (cuBLAS's
 * documentation of it has a table of compute, scale and matrix types), so gradients of weights in
 * bf16 runs are one product after the other. f32 is computed in f32 there too: TF32 is a compute
 * type of its own.
 *
 * It wants shapes in host memory and the addresses of the matrices in device memory. A kernel
 * writes them there from its arguments, to the queue's scratch: nothing is allocated or copied, and
 * later operations of the queue that use the same scratch come after the products.
 *
 * Its documentation allows sizes of 0. They are left out nevertheless, as in gemm.cu.
 */
#include "kernels/cuda/blas.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

extern "C" {
#include "kernels/cpu/grouped_gemm_body.h"
}

enum { GROUPS_MAX = 256 /* in one call */, APART_ROWS = 1024 };

/* Arguments of a kernel. */
struct group_pointers {
    const void *a[GROUPS_MAX], *b[GROUPS_MAX];
    void *c[GROUPS_MAX];
};

/* Arguments of cuBLAS, with one product in each of its groups. It sees transposes (gemm.cu), so its
 * A is B here. */
struct group_shapes {
    int n;
    cublasOperation_t trans_a[GROUPS_MAX], trans_b[GROUPS_MAX];
    int64_t m[GROUPS_MAX], n_cols[GROUPS_MAX], k[GROUPS_MAX];
    int64_t lda[GROUPS_MAX], ldb[GROUPS_MAX], ldc[GROUPS_MAX], products[GROUPS_MAX];
    float alpha[GROUPS_MAX], beta[GROUPS_MAX];
};

static_assert(sizeof(struct group_pointers) <= LAUNCH_ARGUMENTS - 16, "arguments of one kernel");
static_assert(sizeof(struct group_pointers) <= BLAS_ROOM_BYTES,
              "it has a place beside the workspace");

__global__ void __launch_bounds__(LAUNCH_THREADS)
    group_pointers_kernel(struct group_pointers *to,
                          const __grid_constant__ struct group_pointers from, int n)
{
    for (int i = (int)launch_thread(); i < n; i += (int)launch_threads()) {
        to->a[i] = from.a[i];
        to->b[i] = from.b[i];
        to->c[i] = from.c[i];
    }
}

static void add(struct group_shapes *s, struct group_pointers *p, const struct gemm *g)
{
    const int i = s->n++;

    s->trans_a[i] = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    s->trans_b[i] = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    s->m[i] = g->n;
    s->n_cols[i] = g->m;
    s->k[i] = g->k;
    s->lda[i] = g->ldb;
    s->ldb[i] = g->lda;
    s->ldc[i] = g->ldc;
    s->products[i] = 1;
    s->alpha[i] = g->alpha;
    s->beta[i] = g->beta;
    p->a[i] = g->b;
    p->b[i] = g->a;
    p->c[i] = g->c;
}

/* CUBLAS_STATUS_NOT_SUPPORTED: no product is queued. */
static cublasStatus_t multiply(struct device_queue *q, const struct blas *blas,
                               const struct group_shapes *s, const struct group_pointers *p,
                               enum dtype type)
{
    char *scratch = static_cast<char *>(device_scratch(q, BLAS_WORKSPACE_BYTES + BLAS_ROOM_BYTES));
    struct group_pointers *at =
        reinterpret_cast<struct group_pointers *>(scratch + BLAS_WORKSPACE_BYTES);

    if (!scratch) /* the device keeps the failure */
        return CUBLAS_STATUS_SUCCESS;
    launch(q, "the addresses of grouped products", dim3(1), group_pointers_kernel, at, *p, s->n);
    return cublasGemmGroupedBatchedEx_64(blas->handle, s->trans_a, s->trans_b, s->m, s->n_cols,
                                         s->k, s->alpha, at->a, blas_type(type), s->lda, at->b,
                                         blas_type(type), s->ldb, s->beta, at->c, blas_type(type),
                                         s->ldc, s->n, s->products, CUBLAS_COMPUTE_32F);
}

/* The products of groups first to end - 1, which share no C, in one call. False: cuBLAS has no such
 * call, and nothing is computed. */
static bool run_together(struct device_queue *q, struct blas *blas, const struct grouped_gemm *a,
                         int first, int end)
{
    struct group_pointers pointers;
    struct group_shapes shapes;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

    shapes.n = 0;
    for (int i = first; i < end; i++) {
        const struct gemm one = grouped_gemm_product(a, a->host_offsets, i);

        if (one.m > 0 && one.n > 0 && one.k > 0)
            add(&shapes, &pointers, &one);
    }
    if (shapes.n)
        s = multiply(q, blas, &shapes, &pointers, a->product.type);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED)
        return false;
    if (s != CUBLAS_STATUS_SUCCESS)
        blas_fail(q, "grouped products", s);
    for (int i = first; i < end; i++) {
        const struct gemm one = grouped_gemm_product(a, a->host_offsets, i);

        if (one.k == 0) /* C = beta C */
            cuda_run_gemm(q, &one);
    }
    return true;
}

/* Whether cuBLAS takes the matrices in one call. bf16 matrices have to be at multiples of 16 bytes
 * if k elements are such a multiple, of 4 if those are one. This is asked of the distances between
 * rows and matrices, so that the answer does not depend on the groups' sizes. */
static bool can_run_together(const struct grouped_gemm *a)
{
    const struct gemm *g = &a->product;
    const int64_t width = dtype_bytes(g->type), k_bytes = a->axis == GEMM_M ? g->k * width : 0;
    const uintptr_t of = k_bytes % 16 == 0 ? 16 : k_bytes % 4 == 0 ? 4 : 2;
    const uintptr_t places = reinterpret_cast<uintptr_t>(g->a) | reinterpret_cast<uintptr_t>(g->b) |
                             reinterpret_cast<uintptr_t>(g->c) |
                             static_cast<uintptr_t>((g->lda | g->ldb | g->ldc | a->step) * width);

    return g->type == g->c_type &&
           (g->type == DTYPE_F32 || (g->type == DTYPE_BF16 && places % of == 0));
}

/* Whether a call for each of these groups takes less time: they have so many rows, on average of
 * those that have any, that a product of one fills a GPU. Measured on an H200 with cuBLAS 13.1: 128
 * experts of 2048 x 768 in bf16 have, together and apart, 92 and 10 TFLOP/s with 32 rows each, 295
 * and 107 with 256, 329 and 486 with 2048. */
static bool is_faster_apart(const struct grouped_gemm *a, int first, int end)
{
    int n = 0;

    for (int i = first; i < end; i++)
        n += a->host_offsets[i + 1] > a->host_offsets[i];
    return a->product.type == DTYPE_BF16 && n > 0 &&
           (a->host_offsets[end] - a->host_offsets[first]) / n >= APART_ROWS;
}

/* Groups from `first` on that one call may have: with GEMM_K, those that share a matrix are added
 * one after the other. Returns the first that it may not have. */
static int end_of_call(const struct grouped_gemm *a, int first)
{
    const int round = a->axis == GEMM_K && a->matrices ? a->matrices : a->groups;
    int end = (first / round + 1) * round;

    end = end < a->groups ? end : a->groups;
    return end - first < GROUPS_MAX ? end : first + GROUPS_MAX;
}

void cuda_run_grouped_gemm(struct device_queue *q, const struct grouped_gemm *a)
{
    struct blas *blas;
    struct tp_err err;
    bool *lacks;

    if (!a->host_offsets) {
        tp_fail(&err, TP_E_INTERNAL, "grouped products on a GPU need the groups' rows on the host");
        device_fail(q->device, &err);
        return;
    }
    if (!cuda_queue_begin(q) || !(blas = blas_of(q)))
        return;
    lacks = &blas->lacks_groups[a->product.type == DTYPE_BF16];
    for (int first = 0, end; first < a->groups; first = end) {
        end = end_of_call(a, first);
        if (!*lacks && can_run_together(a) && !is_faster_apart(a, first, end)) {
            *lacks = !run_together(q, blas, a, first, end);
            if (!*lacks)
                continue;
        }
        for (int i = first; i < end; i++) {
            const struct gemm one = grouped_gemm_product(a, a->host_offsets, i);

            cuda_run_gemm(q, &one);
        }
    }
}
