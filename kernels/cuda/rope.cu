/* kernels/cuda/rope.cu - see kernels/rope.h. */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

/* A block for each position. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    rope_table_kernel(const __grid_constant__ struct rope_table a)
{
    const int64_t half = a.rotary_dim / 2;

    for (int64_t t = blockIdx.x; t < a.n_positions; t += gridDim.x)
        for (int64_t i = threadIdx.x; i < half; i += LAUNCH_THREADS) {
            double frequency = pow(a.theta, -2.0 * (double)i / (double)a.rotary_dim);
            double angle = (double)(a.first + t) * frequency;

            a.cos_sin[t * a.rotary_dim + i] = (float)cos(angle);
            a.cos_sin[t * a.rotary_dim + half + i] = (float)sin(angle);
        }
}

void cuda_run_rope_table(struct device_queue *q, const struct rope_table *a)
{
    launch_rows(q, "a table of positions", a->n_positions, rope_table_kernel, *a);
}

/* A block for each row; a thread rotates packs of pairs. A pack lies in one half of a head. */
template <enum dtype type, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    rope_apply_kernel(const __grid_constant__ struct rope_apply a)
{
    const int half = (int)(a.rotary_dim / 2), pairs = (int)a.heads * half;
    const float sign = a.sign < 0 ? -1.0f : 1.0f;

    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const float *cos_sin = a.cos_sin + r % a.n_positions * a.rotary_dim;

        for (int k = (int)threadIdx.x * N; k < pairs; k += LAUNCH_THREADS * N) {
            int head = k / half, i = k % half;
            int64_t at = r * a.stride + head * a.head_dim + i;
            struct pack<N> x = pack_load<N>(a.x, type, at), y = pack_load<N>(a.x, type, at + half);
            struct pack<N> c = pack_load<N>(cos_sin, i), s = pack_load<N>(cos_sin, half + i);

#pragma unroll
            for (int j = 0; j < N; j++) {
                float x0 = x.x[j], y0 = y.x[j];

                x.x[j] = x0 * c.x[j] - y0 * (sign * s.x[j]);
                y.x[j] = y0 * c.x[j] + x0 * (sign * s.x[j]);
            }
            pack_store(a.x, type, at, x);
            pack_store(a.x, type, at + half, y);
        }
    }
}

void cuda_run_rope_apply(struct device_queue *q, const struct rope_apply *a)
{
    const int width = pack_most(a->type);
    const bool is_packed = a->rotary_dim % (2 * width) == 0 && a->head_dim % width == 0 &&
                           a->stride % width == 0 && pack_is_aligned(a->x, a->cos_sin);

    pack_select(a->type, is_packed, [=](auto type, auto n) {
        launch_rows(q, "a rotation of positions", a->rows, rope_apply_kernel<type.value, n.value>,
                    *a);
    });
}
