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

/* exp(x - max) for x <= max; 0 where both are -INFINITY. */
static __device__ inline float exp_below(float x, float max)
{
    return vec_exp(x - (max == -INFINITY ? 0.0f : max));
}

/* Online softmax: the sum of a thread's exponentials is that over its largest logit so far. Where
 * a larger one appears, the sum is rescaled, at most once for each pack. */
template <enum dtype type, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_max_kernel(const __grid_constant__ struct loss_max a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        float max = -INFINITY;
        double sum = 0;

        pack_each<N, 2>(
            pack_of_block(), r * a.cols, (r + 1) * a.cols,
            [&](auto n, int64_t i) { return pack_load<n.value>(a.logits, type, i); },
            [&](auto, int64_t, auto x) {
                const float before = max;
                float part = 0;

                for (float logit : x.x)
                    max = reduce_max()(max, logit);
                if (max != before)
                    sum *= (double)exp_below(before, max);
                for (float logit : x.x)
                    part += exp_below(logit, max);
                sum += (double)part;
            });
        const float of_block = reduce_block(max, reduce_max());

        sum = reduce_block(sum * (double)exp_below(max, of_block), reduce_sum());
        if (threadIdx.x == 0) {
            a.row_sum[r] = (float)sum;
            a.row_target[r] = of_block; /* until loss_sum_exp */
            if (!a.merge || of_block > a.row_max[r])
                a.row_max[r] = of_block;
        }
    }
}

void cuda_run_loss_max(struct device_queue *q, const struct loss_max *a)
{
    pack_select(a->type, pack_is_aligned(a->logits), [=](auto type, auto n) {
        launch_rows(q, "the maxima of logits", a->rows, loss_max_kernel<type.value, n.value>, *a);
    });
}

/* The sums are over the largest logit of these columns, which loss_max left in row_target. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_sum_exp_kernel(const __grid_constant__ struct loss_sum_exp a)
{
    for (int64_t r = launch_thread(); r < a.rows; r += launch_threads()) {
        const int64_t c = target_column(a.targets[r], a.first, a.cols);
        const float max = a.row_max[r];

        a.row_sum[r] *= exp_below(a.row_target[r], max);
        a.row_target[r] = c < 0 ? 0 : launch_load(a.logits, a.type, r * a.cols + c) - max;
    }
}

void cuda_run_loss_sum_exp(struct device_queue *q, const struct loss_sum_exp *a)
{
    launch_elements(q, "the sums of the loss", a->rows, loss_sum_exp_kernel, *a);
}

/* The derivative of a soft cap where its result is x, which in bf16 may be rounded beyond the cap;
 * 1 without a cap. */
static __device__ inline float cap_slope(float cap, float x)
{
    const float t = cap > 0 ? fminf(fabsf(x) / cap, 1.0f) : 0;

    return 1.0f - t * t;
}

/* dlogits may be the logits: a thread reads its elements before it writes them. */
template <enum dtype type, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_backward_kernel(const __grid_constant__ struct loss_backward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const int64_t target = target_column(a.targets[r], a.first, a.cols);
        const int64_t target_at = target < 0 ? -1 : r * a.cols + target;
        const float row_sum = a.row_sum[r], by = a.scale / row_sum, max = a.row_max[r];

        pack_each<N, 2>(
            pack_of_block(), r * a.cols, (r + 1) * a.cols,
            [&](auto n, int64_t i) { return pack_load<n.value>(a.logits, type, i); },
            [&](auto n, int64_t i, auto x) {
#pragma unroll
                for (int j = 0; j < n.value; j++) {
                    float e = exp_below(x.x[j], max);
                    float d = i + j == target_at ? a.scale * (e / row_sum - 1.0f) : e * by;

                    x.x[j] = d * cap_slope(a.cap, x.x[j]);
                }
                pack_store(a.dlogits, type, i, x);
            });
    }
}

void cuda_run_loss_backward(struct device_queue *q, const struct loss_backward *a)
{
    struct tp_err err;

    if (a->type != a->logits_type) {
        tp_fail(&err, TP_E_INTERNAL, "the gradient of %s logits is not %s on a GPU",
                dtype_name(a->logits_type), dtype_name(a->type));
        device_fail(q->device, &err);
        return;
    }
    pack_select(a->type, pack_is_aligned(a->dlogits, a->logits), [=](auto type, auto n) {
        launch_rows(q, "the gradient of the loss", a->rows,
                    loss_backward_kernel<type.value, n.value>, *a);
    });
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
