/* kernels/cuda/loss.cu - see kernels/loss.h. Rows of a vocabulary often have an odd number of
 * columns; a row's packs then begin where those of the whole matrix do. */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"

/* Column of a target in this part of the vocabulary, or -1. */
static __device__ inline int64_t target_column(int32_t target, int64_t first, int64_t cols)
{
    int64_t c = target - first;

    return c >= 0 && c < cols ? c : -1;
}

template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_max_kernel(const __grid_constant__ struct loss_max a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        float m = -INFINITY;

        pack_each<N, 4>(
            pack_of_block(), r * a.cols, (r + 1) * a.cols,
            [&](auto n, int64_t i) { return pack_load<n.value>(a.logits, i); },
            [&](auto, int64_t, auto logits) {
                for (float x : logits.x)
                    m = reduce_max()(m, x);
            });
        m = reduce_block(m, reduce_max());
        if (threadIdx.x == 0 && (!a.merge || m > a.row_max[r]))
            a.row_max[r] = m;
    }
}

void cuda_run_loss_max(struct device_queue *q, const struct loss_max *a)
{
    launch_rows(q, "the maxima of logits", a->rows,
                pack_is_aligned(a->logits) ? loss_max_kernel<PACK> : loss_max_kernel<1>, *a);
}

/* The thread that has the target's column reads its logit before it changes it. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_sum_exp_kernel(const __grid_constant__ struct loss_sum_exp a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const float shift = a.row_max[r];
        const int64_t target = target_column(a.targets[r], a.first, a.cols);
        const int64_t target_at = target < 0 ? -1 : r * a.cols + target;
        double sum = 0;

        if (threadIdx.x == 0 && target < 0)
            a.row_target[r] = 0;
        pack_each<N, 2>(
            pack_of_block(), r * a.cols, (r + 1) * a.cols,
            [&](auto n, int64_t i) { return pack_load<n.value>(a.logits, i); },
            [&](auto n, int64_t i, auto x) {
#pragma unroll
                for (int j = 0; j < n.value; j++) {
                    x.x[j] -= shift;
                    if (i + j == target_at)
                        a.row_target[r] = x.x[j];
                    x.x[j] = vec_exp(x.x[j]);
                    sum += (double)x.x[j];
                }
                if (!a.keep)
                    pack_store(a.logits, i, x);
            });
        sum = reduce_block(sum, reduce_sum());
        if (threadIdx.x == 0)
            a.row_sum[r] = (float)sum;
    }
}

void cuda_run_loss_sum_exp(struct device_queue *q, const struct loss_sum_exp *a)
{
    launch_rows(q, "the sums of the loss", a->rows,
                pack_is_aligned(a->logits) ? loss_sum_exp_kernel<PACK> : loss_sum_exp_kernel<1>,
                *a);
}

/* The derivative of a soft cap where its result is x; 1 without a cap. */
static __device__ inline float cap_slope(const struct loss_backward &a, float x)
{
    float t = a.cap > 0 ? x / a.cap : 0;

    return 1.0f - t * t;
}

/* dlogits may be exps: a thread reads its elements before it writes them. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_backward_kernel(const __grid_constant__ struct loss_backward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const int64_t target = target_column(a.targets[r], a.first, a.cols);
        const int64_t target_at = target < 0 ? -1 : r * a.cols + target;
        const float row_sum = a.row_sum[r], by = a.scale / row_sum;
        const float shift = a.cap > 0 ? a.row_max[r] : 0;

        pack_each<N, 2>(
            pack_of_block(), r * a.cols, (r + 1) * a.cols,
            [&](auto n, int64_t i) { return pack_load<n.value>(a.exps, i); },
            [&](auto n, int64_t i, auto x) {
#pragma unroll
                for (int j = 0; j < n.value; j++) {
                    float e = a.cap > 0 ? vec_exp(x.x[j] - shift) : x.x[j];
                    float d = i + j == target_at ? a.scale * (e / row_sum - 1.0f) : e * by;

                    x.x[j] = d * cap_slope(a, x.x[j]);
                }
                pack_store(a.dlogits, a.type, i, x);
            });
    }
}

void cuda_run_loss_backward(struct device_queue *q, const struct loss_backward *a)
{
    const bool is_packed = pack_is_aligned(a->dlogits, a->exps);

    launch_rows(q, "the gradient of the loss", a->rows,
                is_packed ? loss_backward_kernel<PACK> : loss_backward_kernel<1>, *a);
}

template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_total_kernel(const __grid_constant__ struct loss_total a)
{
    double total = 0;

    pack_each<N, 2>(
        pack_of_block(), 0, a.rows,
        [&](auto n, int64_t r) {
            return pack_set<n.value, 2>{ { pack_load<n.value>(a.row_sum, r),
                                           pack_load<n.value>(a.row_target, r) } };
        },
        [&](auto n, int64_t, auto of_rows) {
            for (int j = 0; j < n.value; j++)
                total += log((double)of_rows.of[0].x[j]) - (double)of_rows.of[1].x[j];
        });
    total = reduce_block(total, reduce_sum());
    if (threadIdx.x == 0)
        *a.out = total;
}

void cuda_run_loss_total(struct device_queue *q, const struct loss_total *a)
{
    const bool is_packed = pack_is_aligned(a->row_sum, a->row_target);

    launch(q, "the loss", dim3(1), is_packed ? loss_total_kernel<PACK> : loss_total_kernel<1>, *a);
}
