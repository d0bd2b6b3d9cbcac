/* kernels/cuda/rope.cu - see kernels/rope.h. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

/* A block for each position. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    rope_table_kernel(const __grid_constant__ struct rope_table a)
{
    const int64_t half = a.head_dim / 2;

    for (int64_t t = blockIdx.x; t < a.n_positions; t += gridDim.x)
        for (int64_t i = threadIdx.x; i < half; i += LAUNCH_THREADS) {
            double frequency = pow(a.theta, -2.0 * (double)i / (double)a.head_dim);
            double angle = (double)(a.first + t) * frequency;

            a.cos_sin[t * a.head_dim + i] = (float)cos(angle);
            a.cos_sin[t * a.head_dim + half + i] = (float)sin(angle);
        }
}

void cuda_run_rope_table(struct device_queue *q, const struct rope_table *a)
{
    launch_rows(q, "a table of positions", a->n_positions, rope_table_kernel, *a);
}

/* A block for each row; a thread rotates pairs. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    rope_apply_kernel(const __grid_constant__ struct rope_apply a)
{
    const int half = (int)(a.head_dim / 2), pairs = (int)a.heads * half;
    const float sign = a.sign < 0 ? -1.0f : 1.0f;

    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const float *cos_sin = a.cos_sin + r % a.n_positions * a.head_dim;

        for (int k = (int)threadIdx.x; k < pairs; k += LAUNCH_THREADS) {
            int head = k / half, i = k % half;
            float *x = a.x + r * a.stride + head * a.head_dim + i, *y = x + half;
            float c = cos_sin[i], s = sign * cos_sin[half + i];
            float x0 = *x, y0 = *y;

            *x = x0 * c - y0 * s;
            *y = y0 * c + x0 * s;
        }
    }
}

void cuda_run_rope_apply(struct device_queue *q, const struct rope_apply *a)
{
    launch_rows(q, "a rotation of positions", a->rows, rope_apply_kernel, *a);
}
