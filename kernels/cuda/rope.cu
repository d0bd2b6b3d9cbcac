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

static __device__ inline void rotate(float *x, float *y, float c, float s)
{
    float x0 = *x, y0 = *y;

    *x = x0 * c - y0 * s;
    *y = y0 * c + x0 * s;
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
            int64_t at = r * a.stride + head * a.head_dim + i;
            float x = launch_load(a.x, a.type, at), y = launch_load(a.x, a.type, at + half);

            rotate(&x, &y, cos_sin[i], sign * cos_sin[half + i]);
            launch_store(a.x, a.type, at, x);
            launch_store(a.x, a.type, at + half, y);
        }
    }
}

/* The angles of a pack's elements, in words of 16 bytes. */
struct alignas(16) angles {
    float x[LAUNCH_PACK];
};

/* bf16, in whole packs: a thread rotates LAUNCH_PACK pairs. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    rope_apply_pack_kernel(const __grid_constant__ struct rope_apply a)
{
    const int half = (int)(a.head_dim / 2) / LAUNCH_PACK, pairs = (int)a.heads * half;
    const float sign = a.sign < 0 ? -1.0f : 1.0f;

    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const struct angles *cos_sin =
            reinterpret_cast<const struct angles *>(a.cos_sin + r % a.n_positions * a.head_dim);

        for (int k = (int)threadIdx.x; k < pairs; k += LAUNCH_THREADS) {
            int head = k / half, i = k % half;
            int64_t at = r * (a.stride / LAUNCH_PACK) + head * 2 * half + i;
            struct angles c = cos_sin[i], s = cos_sin[half + i];
            struct launch_pack x = launch_load_pack(a.x, at), y = launch_load_pack(a.x, at + half);

#pragma unroll
            for (int j = 0; j < LAUNCH_PACK; j++) {
                float u = vec_from_bf16(x.x[j]), v = vec_from_bf16(y.x[j]);

                rotate(&u, &v, c.x[j], sign * s.x[j]);
                x.x[j] = vec_to_bf16(u);
                y.x[j] = vec_to_bf16(v);
            }
            launch_store_pack(a.x, at, x);
            launch_store_pack(a.x, at + half, y);
        }
    }
}

void cuda_run_rope_apply(struct device_queue *q, const struct rope_apply *a)
{
    const bool is_packed = a->type == DTYPE_BF16 && a->head_dim % (2 * LAUNCH_PACK) == 0 &&
                           a->stride % LAUNCH_PACK == 0 && launch_is_packed(a->x, a->cos_sin);

    launch_rows(q, "a rotation of positions", a->rows,
                is_packed ? rope_apply_pack_kernel : rope_apply_kernel, *a);
}
