/* kernels/cuda/grad_norm.cu - see kernels/grad_norm.h. */
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"

static const int PARTS = 1024; /* the same partial sums on every GPU */

/* The sum of squares of x[first], x[first + step], ... for each thread's `first`, over the block.
 */
static __device__ double squares_of(const float *x, int64_t n, int64_t first, int64_t step)
{
    double sum = 0;

    for (int64_t i = first; i < n; i += step)
        sum += (double)x[i] * (double)x[i];
    return reduce_block(sum, reduce_sum());
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    squares_parts_kernel(double *parts, const float *x, int64_t n)
{
    double sum = squares_of(x, n, launch_thread(), launch_threads());

    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    sum_parts_kernel(double *out, const double *parts, int n)
{
    double sum = 0;

    for (int i = (int)threadIdx.x; i < n; i += LAUNCH_THREADS)
        sum += parts[i];
    sum = reduce_block(sum, reduce_sum());
    if (threadIdx.x == 0)
        *out = sum;
}

void cuda_run_grad_norm_squares(struct device_queue *q, const struct grad_norm_squares *a)
{
    double *parts = static_cast<double *>(device_scratch(q, PARTS * (int64_t)sizeof *parts));
    int64_t blocks = a->n / LAUNCH_THREADS + 1;
    int n = (int)(blocks < PARTS ? blocks : PARTS);

    if (!parts) /* the device keeps the failure */
        return;
    launch(q, "a sum of squares", dim3((unsigned)n), squares_parts_kernel, parts, a->x, a->n);
    launch(q, "a sum of squares", dim3(1), sum_parts_kernel, a->out, parts, n);
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    squares_rows_kernel(const __grid_constant__ struct grad_norm_squares_rows a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        double sum = squares_of(a.x + r * a.cols, a.cols, threadIdx.x, LAUNCH_THREADS);

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
