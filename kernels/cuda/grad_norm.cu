/*
 * kernels/cuda/grad_norm.cu - see kernels/grad_norm.h. Two launches sum the squares of many
 * tensors: the blocks of the first share the parts of all tensors together, and those of the second
 * add the parts of each tensor. A tensor's parts follow from its size, so every GPU gives the same
 * bits, whatever the tensors beside it.
 */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"

enum {
    SQUARES_PART = 32 * LAUNCH_THREADS, /* elements, at least */
    SQUARES_PARTS = 1024                /* of a tensor, at most */
};

struct squares_entry {
    const float *x;
    int64_t n;
};

struct squares_table {
    struct squares_entry of[GRAD_NORM_TOGETHER];
    int ends[GRAD_NORM_TOGETHER]; /* the parts of an entry and of those before it */
    int n, n_parts;
    double *parts; /* [n_parts] */
};
static_assert(sizeof(struct squares_table) <= LAUNCH_ARGUMENTS, "the arguments of a kernel");

/* This thread's share of the sum of squares of x[n], in an order that does not depend on whether x
 * is packed. */
template <bool is_packed> static __device__ inline double squares_share(const float *x, int64_t n)
{
    double sum = 0;

    pack_each<PACK, 4>(
        pack_of_block(), 0, n,
        [&](auto width, int64_t i) {
            if constexpr (is_packed)
                return pack_load<width.value>(x, i);
            else
                return pack_gather<width.value>(x, i);
        },
        [&](auto, int64_t, auto of) {
            for (float element : of.x)
                sum += (double)element * (double)element;
        });
    return sum;
}

/* The sum of squares of x[n], over the block. */
static __device__ double squares_of(const float *x, int64_t n)
{
    const bool is_packed = reinterpret_cast<uintptr_t>(x) % (PACK * sizeof *x) == 0;

    return reduce_block(is_packed ? squares_share<true>(x, n) : squares_share<false>(x, n),
                        reduce_sum());
}

static __host__ __device__ int64_t part_size(int64_t n)
{
    int64_t least = (n + SQUARES_PARTS - 1) / SQUARES_PARTS;

    least = (least + PACK - 1) / PACK * PACK; /* if one part is packed, all are */
    return least > SQUARES_PART ? least : (int64_t)SQUARES_PART;
}

/* The number of entry t's first part. */
static __device__ int first_part(const struct squares_table &a, int t)
{
    return t > 0 ? a.ends[t - 1] : 0;
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    squares_parts_kernel(const __grid_constant__ struct squares_table a)
{
    int t = 0;

    for (int part = (int)blockIdx.x; part < a.n_parts; part += (int)gridDim.x) {
        t = launch_list_of(a.ends, a.n, t, part);
        const int64_t each = part_size(a.of[t].n), from = (part - first_part(a, t)) * each;
        const int64_t left = a.of[t].n - from;
        double sum = squares_of(a.of[t].x + from, left < each ? left : each);

        if (threadIdx.x == 0)
            a.parts[part] = sum;
    }
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    squares_sum_kernel(double *out, const __grid_constant__ struct squares_table a)
{
    for (int t = (int)blockIdx.x; t < a.n; t += (int)gridDim.x) {
        double sum = 0;

        for (int i = first_part(a, t) + (int)threadIdx.x; i < a.ends[t]; i += LAUNCH_THREADS)
            sum += a.parts[i];
        sum = reduce_block(sum, reduce_sum());
        if (threadIdx.x == 0)
            out[t] = sum;
    }
}

static void squares_together(struct device_queue *q, double *out,
                             const struct grad_norm_tensor *tensors, int n)
{
    struct squares_table a = {};

    for (a.n = 0; a.n < n; a.n++) {
        const struct grad_norm_tensor *t = &tensors[a.n];
        const int64_t each = part_size(t->n);

        a.of[a.n] = { t->x, t->n };
        a.n_parts += (int)((t->n + each - 1) / each);
        a.ends[a.n] = a.n_parts;
    }
    a.parts = static_cast<double *>(device_scratch(q, (a.n_parts + 1) * (int64_t)sizeof *a.parts));
    if (!a.parts) /* the device keeps the failure */
        return;
    launch_rows(q, "sums of squares", a.n_parts, squares_parts_kernel, a);
    launch_rows(q, "sums of squares", a.n, squares_sum_kernel, out, a);
}

void cuda_run_grad_norm_squares(struct device_queue *q, const struct grad_norm_squares *a)
{
    for (int i = 0; i < a->n_tensors; i += GRAD_NORM_TOGETHER) {
        int left = a->n_tensors - i;

        squares_together(q, a->out + i, a->tensors + i,
                         left < GRAD_NORM_TOGETHER ? left : GRAD_NORM_TOGETHER);
    }
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    squares_rows_kernel(const __grid_constant__ struct grad_norm_squares_rows a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        double sum = squares_of(a.x + r * a.cols, a.cols);

        if (threadIdx.x == 0)
            a.out[r] = sum;
    }
}

void cuda_run_grad_norm_squares_rows(struct device_queue *q, const struct grad_norm_squares_rows *a)
{
    launch_rows(q, "sums of squares", a->rows, squares_rows_kernel, *a);
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    clip_kernel(const __grid_constant__ struct grad_norm_clip a)
{
    double norm = sqrt(*a.squares);

    if (threadIdx.x != 0)
        return;
    *a.norm = norm;
    *a.scale = a.clip > 0 && norm + 1e-6 > a.clip ? a.clip / (norm + 1e-6) : 1;
}

void cuda_run_grad_norm_clip(struct device_queue *q, const struct grad_norm_clip *a)
{
    launch(q, "the clip factor", dim3(1), clip_kernel, *a);
}
