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

/* Blocks on a processor, each with 32 KiB in flight. */
enum { SUM_BLOCKS = 3, SUM_LOADS = 8 };

template <enum dtype type, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS, SUM_BLOCKS)
    bias_gradient_kernel(const __grid_constant__ struct bias_gradient a, float *parts)
{
    const int64_t first = a.dy_step * blockIdx.y;
    float sums[1];

    reduce_columns<N, SUM_LOADS>(sums, a.rows, a.cols, [&](int64_t row, int64_t col) {
        return pack_set<N, 1>{ { pack_load<N>(a.dy, type, first + row * a.cols + col) } };
    });
    reduce_store<N>(a.dbias + a.dbias_step * blockIdx.y, parts, a.cols, a.clear, sums[0]);
}

/* There are as many parts for columns that are no packs, so the sums have the same order. */
void cuda_run_bias_gradient(struct device_queue *q, const struct bias_gradient *a)
{
    const int count = a->count > 0 ? a->count : 1, most = pack_most(a->type);
    struct bias_gradient one = *a;
    struct reduce_plan p;

    if (a->count == 0)
        one.clear = false;
    if (a->cols == 0 || !reduce_plan_make(&p, q, a->rows, a->cols, count, 1,
                                          reduce_full_parts(q, a->cols, count, most, SUM_BLOCKS)))
        return;
    pack_select(
        a->type,
        a->cols % most == 0 && pack_is_aligned(a->dy) && (count == 1 || a->dy_step % most == 0),
        [&](auto type, auto n) {
            launch(q, "the gradient of a bias", reduce_plan_grid(&p, n.value),
                   bias_gradient_kernel<type.value, n.value>, one, reduce_plan_parts(&p, 0));
        });
    reduce_plan_add(q, &p, 0, one.dbias, one.dbias_step, one.clear);
}
