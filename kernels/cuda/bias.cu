/* kernels/cuda/bias.cu - see kernels/bias.h. */
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"

__global__ void __launch_bounds__(LAUNCH_THREADS)
    bias_kernel(const __grid_constant__ struct bias_residual_add a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x)
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            float x = a.x[r * a.cols + c];

            if (a.residual)
                x += a.residual[r * a.cols + c];
            if (a.bias)
                x += a.bias[c];
            a.x[r * a.cols + c] = x;
        }
}

void cuda_run_bias_residual_add(struct device_queue *q, const struct bias_residual_add *a)
{
    launch_rows(q, "a sum with a bias", a->rows, bias_kernel, *a);
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    bias_gradient_kernel(const __grid_constant__ struct bias_gradient a, float *parts)
{
    const int64_t first = a.dy_step * blockIdx.y;
    float sum = reduce_columns(a.rows, a.cols, [&](int64_t row, int64_t col) {
        return launch_load(a.dy, a.type, first + row * a.cols + col);
    });

    reduce_store(a.dbias + a.dbias_step * blockIdx.y, parts, a.cols, a.clear, sum);
}

void cuda_run_bias_gradient(struct device_queue *q, const struct bias_gradient *a)
{
    struct bias_gradient one = *a;
    struct reduce_plan p;

    if (a->count == 0)
        one.clear = false;
    if (a->cols == 0 || !reduce_plan_make(&p, q, a->rows, a->cols, a->count > 0 ? a->count : 1, 1))
        return;
    launch(q, "the gradient of a bias", reduce_plan_grid(&p), bias_gradient_kernel, one,
           reduce_plan_parts(&p, 0));
    reduce_plan_add(q, &p, 0, one.dbias, one.dbias_step, one.clear);
}
