/* kernels/cuda/bias.cu - see kernels/bias.h. */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"

template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    bias_kernel(const __grid_constant__ struct bias_residual_add a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        float *x = a.x + r * a.cols;

        pack_each<N, 2>(
            pack_of_block(), 0, a.cols,
            [&](auto n, int64_t i) {
                pack_set<n.value, 2> both = { { a.block
                                                    ? pack_load<n.value>(a.block + r * a.cols, i)
                                                    : pack_load<n.value>(x, i) } };

                if (a.residual)
                    both.of[1] = pack_load<n.value>(a.residual + r * a.cols, i);
                return both;
            },
            [&](auto n, int64_t i, auto both) {
                if (a.residual)
                    pack_add(both.of[0], both.of[1]);
                if (a.bias)
                    pack_add(both.of[0], pack_load<n.value>(a.bias, i));
                pack_store(x, i, both.of[0]);
            });
    }
}

void cuda_run_bias_residual_add(struct device_queue *q, const struct bias_residual_add *a)
{
    const bool is_packed =
        a->cols % PACK == 0 && pack_is_aligned(a->x, a->residual, a->bias, a->block);

    launch_rows(q, "a sum with a bias", a->rows, is_packed ? bias_kernel<PACK> : bias_kernel<1>,
                *a);
}

template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    bias_gradient_kernel(const __grid_constant__ struct bias_gradient a, float *parts)
{
    const int64_t first = a.dy_step * blockIdx.y;
    float sums[1];

    reduce_columns<N, N == 1 ? 4 : 8>(sums, a.rows, a.cols, [&](int64_t row, int64_t col) {
        return pack_set<N, 1>{ { pack_load<N>(a.dy, a.type, first + row * a.ld + col) } };
    });
    reduce_store<N>(a.dbias + a.dbias_step * blockIdx.y, parts, a.cols, a.clear, sums[0]);
}

void cuda_run_bias_gradient(struct device_queue *q, const struct bias_gradient *a)
{
    const int count = a->count > 0 ? a->count : 1;
    const bool is_packed = a->cols % PACK == 0 && a->ld % PACK == 0 && pack_is_aligned(a->dy) &&
                           (count == 1 || a->dy_step % PACK == 0);
    struct bias_gradient one = *a;
    struct reduce_plan p;

    if (a->count == 0)
        one.clear = false;
    if (a->ld == 0)
        one.ld = a->cols;
    if (a->cols == 0 || !reduce_plan_make(&p, q, a->rows, a->cols, count, 1))
        return;
    launch(q, "the gradient of a bias", reduce_plan_grid(&p, is_packed ? PACK : 1),
           is_packed ? bias_gradient_kernel<PACK> : bias_gradient_kernel<1>, one,
           reduce_plan_parts(&p, 0));
    reduce_plan_add(q, &p, 0, one.dbias, one.dbias_step, one.clear);
}
