/* kernels/cuda/rms_norm.cu - see kernels/rms_norm.h. */
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"

/* A block for each row; a thread always has the same columns. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    rms_norm_forward_kernel(const __grid_constant__ struct rms_norm_forward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const int64_t row = r * a.cols;
        double sum = 0;

        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            float x = a.x[row + c];

            if (a.residual) {
                x += a.residual[row + c];
                a.x[row + c] = x;
            }
            sum += (double)(x * x);
        }
        sum = reduce_block(sum, reduce_sum());
        float by = (float)(1.0 / sqrt(sum / (double)a.cols + (double)a.eps));
        if (threadIdx.x == 0)
            a.rstd[r] = by;
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS)
            launch_store(a.y, a.type, row + c, a.x[row + c] * by * a.w[c]);
    }
}

void cuda_run_rms_norm_forward(struct device_queue *q, const struct rms_norm_forward *a)
{
    launch_rows(q, "RMS norm", a->rows, rms_norm_forward_kernel, *a);
}

/* With n = x rstd: dx += rstd (dy w - n mean(dy w n)). */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    rms_norm_dx_kernel(const __grid_constant__ struct rms_norm_backward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const int64_t row = r * a.cols;
        const float rstd = a.rstd[r];
        const double s = (double)rstd;
        double dot = 0;

        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS)
            dot += (double)(a.dy[row + c] * a.w[c] * a.x[row + c]);
        dot = reduce_block(dot, reduce_sum());
        float along = (float)(dot * s * s * s / (double)a.cols);
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS)
            a.dx[row + c] += rstd * (a.dy[row + c] * a.w[c]) - along * a.x[row + c];
    }
}

/* dw += dy n, or a sum for each block of rows. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    rms_norm_dw_kernel(const __grid_constant__ struct rms_norm_backward a, float *parts)
{
    const int64_t rows = a.rows / gridDim.y, first = rows * blockIdx.y;
    float sum = reduce_columns(rows, a.cols, [&](int64_t row, int64_t col) {
        int64_t at = (first + row) * a.cols + col;
        return a.dy[at] * (a.x[at] * a.rstd[first + row]);
    });

    reduce_store(a.dw + a.block_step * blockIdx.y, parts, a.cols, a.blocks, sum);
}

void cuda_run_rms_norm_backward(struct device_queue *q, const struct rms_norm_backward *a)
{
    const int blocks = a->blocks > 0 ? a->blocks : 1;
    struct reduce_plan p;

    launch_rows(q, "the gradient of RMS norm", a->rows, rms_norm_dx_kernel, *a);
    if (!reduce_plan_make(&p, q, a->rows / blocks, a->cols, blocks, 1))
        return;
    launch(q, "the gradient of RMS norm", reduce_plan_grid(&p), rms_norm_dw_kernel, *a,
           reduce_plan_parts(&p, 0));
    reduce_plan_add(q, &p, 0, a->dw, a->block_step, a->blocks > 0);
}
