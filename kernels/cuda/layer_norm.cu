/* kernels/cuda/layer_norm.cu - see kernels/layer_norm.h. */
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"

/* A block for each row; a thread always has the same columns. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    layer_norm_forward_kernel(const __grid_constant__ struct layer_norm_forward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const int64_t row = r * a.cols;
        double sum = 0;

        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            float x = a.x[row + c];

            if (a.residual)
                x += a.residual[row + c];
            if (a.x_bias)
                x += a.x_bias[c];
            if (a.residual || a.x_bias)
                a.x[row + c] = x;
            sum += (double)x;
        }
        const float mean = (float)(reduce_block(sum, reduce_sum()) / (double)a.cols);
        sum = 0;
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            float away = a.x[row + c] - mean;

            sum += (double)(away * away);
        }
        sum = reduce_block(sum, reduce_sum());
        const float rstd = (float)(1.0 / sqrt(sum / (double)a.cols + (double)a.eps));
        if (threadIdx.x == 0) {
            a.mean[r] = mean;
            a.rstd[r] = rstd;
        }
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS)
            launch_store(a.y, a.type, row + c, (a.x[row + c] - mean) * rstd * a.w[c] + a.b[c]);
    }
}

void cuda_run_layer_norm_forward(struct device_queue *q, const struct layer_norm_forward *a)
{
    launch_rows(q, "layer norm", a->rows, layer_norm_forward_kernel, *a);
}

/* With n = (x - mean) rstd and g = dy w: dx += rstd (g - mean(g) - n mean(g n)). */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    layer_norm_dx_kernel(const __grid_constant__ struct layer_norm_backward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const int64_t row = r * a.cols;
        const float mean = a.mean[r], rstd = a.rstd[r];
        double g_sum = 0, gn_sum = 0;

        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            float g = a.dy[row + c] * a.w[c];

            g_sum += (double)g;
            gn_sum += (double)(g * ((a.x[row + c] - mean) * rstd));
        }
        const float g_mean = (float)(reduce_block(g_sum, reduce_sum()) / (double)a.cols);
        const float gn_mean = (float)(reduce_block(gn_sum, reduce_sum()) / (double)a.cols);
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            float n = (a.x[row + c] - mean) * rstd;

            a.dx[row + c] += rstd * (a.dy[row + c] * a.w[c] - g_mean - n * gn_mean);
        }
    }
}

/* dw += dy n and db += dy, or a sum for each block of rows. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    layer_norm_dw_kernel(const __grid_constant__ struct layer_norm_backward a, float *dw_parts,
                         float *db_parts)
{
    const int64_t rows = a.rows / gridDim.y, first = rows * blockIdx.y;
    const int64_t to = a.block_step * blockIdx.y;
    float dw_sum = reduce_columns(rows, a.cols, [&](int64_t row, int64_t col) {
        int64_t r = first + row, at = r * a.cols + col;
        return a.dy[at] * ((a.x[at] - a.mean[r]) * a.rstd[r]);
    });
    float db_sum = reduce_columns(
        rows, a.cols, [&](int64_t row, int64_t col) { return a.dy[(first + row) * a.cols + col]; });

    reduce_store(a.dw + to, dw_parts, a.cols, a.blocks, dw_sum);
    reduce_store(a.db + to, db_parts, a.cols, a.blocks, db_sum);
}

void cuda_run_layer_norm_backward(struct device_queue *q, const struct layer_norm_backward *a)
{
    const int blocks = a->blocks > 0 ? a->blocks : 1;
    struct reduce_plan p;

    launch_rows(q, "the gradient of layer norm", a->rows, layer_norm_dx_kernel, *a);
    if (!reduce_plan_make(&p, q, a->rows / blocks, a->cols, blocks, 2))
        return;
    launch(q, "the gradient of layer norm", reduce_plan_grid(&p), layer_norm_dw_kernel, *a,
           reduce_plan_parts(&p, 0), reduce_plan_parts(&p, 1));
    reduce_plan_add(q, &p, 0, a->dw, a->block_step, a->blocks > 0);
    reduce_plan_add(q, &p, 1, a->db, a->block_step, a->blocks > 0);
}
