/* kernels/cuda/loss.cu - see kernels/loss.h. */
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"

/* Column of a target in this part of the vocabulary, or -1. */
static __device__ inline int64_t target_column(int32_t target, int64_t first, int64_t cols)
{
    int64_t c = target - first;

    return c >= 0 && c < cols ? c : -1;
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_max_kernel(const __grid_constant__ struct loss_max a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        float m = -INFINITY;

        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS)
            m = reduce_max()(m, a.logits[r * a.cols + c]);
        m = reduce_block(m, reduce_max());
        if (threadIdx.x == 0 && (!a.merge || m > a.row_max[r]))
            a.row_max[r] = m;
    }
}

void cuda_run_loss_max(struct device_queue *q, const struct loss_max *a)
{
    launch_rows(q, "the maxima of logits", a->rows, loss_max_kernel, *a);
}

/* The thread that has the target's column reads its logit before it changes it. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_sum_exp_kernel(const __grid_constant__ struct loss_sum_exp a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const float shift = a.row_max[r];
        const int64_t target = target_column(a.targets[r], a.first, a.cols);
        double sum = 0;

        if (threadIdx.x == 0 && target < 0)
            a.row_target[r] = 0;
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            float x = a.logits[r * a.cols + c] - shift, e = vec_exp(x);

            if (c == target)
                a.row_target[r] = x;
            if (!a.keep)
                a.logits[r * a.cols + c] = e;
            sum += (double)e;
        }
        sum = reduce_block(sum, reduce_sum());
        if (threadIdx.x == 0)
            a.row_sum[r] = (float)sum;
    }
}

void cuda_run_loss_sum_exp(struct device_queue *q, const struct loss_sum_exp *a)
{
    launch_rows(q, "the sums of the loss", a->rows, loss_sum_exp_kernel, *a);
}

/* The derivative of a soft cap where its result is x; 1 without a cap. */
static __device__ inline float cap_slope(const struct loss_backward &a, float x)
{
    float t = a.cap > 0 ? x / a.cap : 0;

    return 1.0f - t * t;
}

/* dlogits may be exps: a thread reads its element before it writes it. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_backward_kernel(const __grid_constant__ struct loss_backward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const int64_t target = target_column(a.targets[r], a.first, a.cols);
        const float by = a.scale / a.row_sum[r];

        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            float x = a.exps[r * a.cols + c], e = a.cap > 0 ? vec_exp(x - a.row_max[r]) : x;
            float d = c == target ? a.scale * (e / a.row_sum[r] - 1.0f) : e * by;

            launch_store(a.dlogits, a.type, r * a.cols + c, d * cap_slope(a, x));
        }
    }
}

void cuda_run_loss_backward(struct device_queue *q, const struct loss_backward *a)
{
    launch_rows(q, "the gradient of the loss", a->rows, loss_backward_kernel, *a);
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_total_kernel(const __grid_constant__ struct loss_total a)
{
    double total = 0;

    for (int64_t r = threadIdx.x; r < a.rows; r += LAUNCH_THREADS)
        total += log((double)a.row_sum[r]) - (double)a.row_target[r];
    total = reduce_block(total, reduce_sum());
    if (threadIdx.x == 0)
        *a.out = total;
}

void cuda_run_loss_total(struct device_queue *q, const struct loss_total *a)
{
    launch(q, "the loss", dim3(1), loss_total_kernel, *a);
}
