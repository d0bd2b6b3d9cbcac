/* kernels/cuda/loss.cu - see kernels/loss.h. Rows of a vocabulary often have an odd number of
 * columns; a row's packs then begin where those of the whole matrix do. */
#include "kernels/cuda/instruction.cuh"
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

/* The same for many x and one max: power(x, base_of(max)). Reading bf16 takes less time than 25
 * instructions for each exponential, so it is one of 2 there. */
template <enum dtype type> static __device__ inline float base_of(float max)
{
    const float base = max == -INFINITY ? 0.0f : max;

    return type == DTYPE_BF16 ? base * INSTRUCTION_LOG2_E : base;
}

template <enum dtype type> static __device__ inline float power(float x, float base)
{
    if constexpr (type == DTYPE_BF16)
        return instruction_exp2(fmaf(x, INSTRUCTION_LOG2_E, -base));
    else
        return vec_exp(x - base);
}

/* By which a sum over one base is multiplied to be over a larger one. A sum that is 0 may have had
 * any base, so the factor is never infinite. */
template <enum dtype type> static __device__ inline float rescale(float before, float base)
{
    const float by = fminf(before - base, 0.0f);

    return type == DTYPE_BF16 ? instruction_exp2(by) : vec_exp(by);
}

/* A thread's sum of exponentials: of bf16, a few hundred of them are added in f32. */
template <enum dtype type>
using exp_sum = typename std::conditional<type == DTYPE_BF16, float, double>::type;

/* Online softmax: the sum of a thread's exponentials is that over its largest logit so far. Where
 * a larger one appears, the sum is rescaled, at most once for each pack. (fmaxf forgets a NaN, but
 * the sum does not.) */
template <enum dtype type, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_max_kernel(const __grid_constant__ struct loss_max a)
{
    const int64_t r = blockIdx.x;
    float max = -INFINITY, base = 0;
    exp_sum<type> sum = 0;

    pack_each<N, 2>(
        pack_of_block(), r * a.cols, (r + 1) * a.cols,
        [&](auto n, int64_t i) { return pack_load<n.value>(a.logits, type, i); },
        [&](auto, int64_t, auto x) {
            const float before = base;
            float part = 0;

            for (float logit : x.x)
                max = fmaxf(max, logit);
            base = base_of<type>(max);
            if (base != before)
                sum *= (exp_sum<type>)rescale<type>(before, base);
            for (float logit : x.x)
                part += power<type>(logit, base);
            sum += (exp_sum<type>)part;
        });
    max = reduce_block(max, reduce_max());

    const double of_block =
        reduce_block((double)sum * (double)rescale<type>(base, base_of<type>(max)), reduce_sum());
    if (threadIdx.x == 0) {
        a.row_sum[r] = (float)of_block;
        a.row_target[r] = max; /* until loss_sum_exp */
        if (!a.merge || max > a.row_max[r])
            a.row_max[r] = max;
    }
}

void cuda_run_loss_max(struct device_queue *q, const struct loss_max *a)
{
    pack_select(a->type, pack_is_aligned(a->logits), [=](auto type, auto n) {
        launch_each(q, "the maxima of logits", a->rows, loss_max_kernel<type.value, n.value>, *a);
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

/* The derivative of a soft cap where its result is x, which in bf16 may be rounded beyond the
 * cap. */
static __device__ inline float cap_slope(float cap, float x)
{
    const float t = fminf(fabsf(x) / cap, 1.0f);

    return 1.0f - t * t;
}

enum { GRADIENT_PACKS = 4 /* of a thread: one is computed, the others are in flight */ };

/* What the gradient of a row's logits depends on. */
struct gradient_row {
    float base, by, scale, cap;
    int target; /* its column; not one of these: another rank has it */
};

/* The logits of columns c .. c + N - 1 become their gradients. */
template <enum dtype type, bool is_capped, int N>
static __device__ inline void gradient_of(const struct gradient_row &g, int c, struct pack<N> &x)
{
    struct pack<N> d;

#pragma unroll
    for (int j = 0; j < N; j++)
        d.x[j] = power<type>(x.x[j], g.base) * g.by;
    if ((unsigned)(g.target - c) < N)
#pragma unroll
        for (int j = 0; j < N; j++)
            d.x[j] -= c + j == g.target ? g.scale : 0.0f;
#pragma unroll
    for (int j = 0; j < N; j++)
        x.x[j] = is_capped ? d.x[j] * cap_slope(g.cap, x.x[j]) : d.x[j];
}

/* Half of the bytes are written, so reads need long queues: the load of a pack is queued before
 * packs are stored that come before it. The few elements outside of packs wait for memory together
 * with the first packs. dlogits may be the logits: a thread reads its elements before it writes
 * them. */
template <enum dtype type, int N, bool is_capped>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    loss_backward_kernel(const __grid_constant__ struct loss_backward a)
{
    using element = std::conditional_t<type == DTYPE_BF16, uint16_t, float>;
    using word = typename pack_word<N *(int)sizeof(element)>::type;
    const int64_t r = blockIdx.x, begin = r * a.cols;
    const element *from = static_cast<const element *>(a.logits) + begin;
    element *to = static_cast<element *>(a.dlogits) + begin;
    const int cols = (int)a.cols, up = (int)(-begin & (N - 1)), before = up < cols ? up : cols;
    const int packs = (cols - before) / N, me = (int)threadIdx.x;
    const int rest = cols - packs * N, odd = me < before ? me : me + packs * N;
    const word *words = reinterpret_cast<const word *>(from + before);
    word x[GRADIENT_PACKS] = {};
    element x_odd = 0;

    if (me < rest)
        x_odd = from[odd];
#pragma unroll
    for (int k = 0; k + 1 < GRADIENT_PACKS; k++)
        if (me + k * LAUNCH_THREADS < packs)
            x[k] = words[me + k * LAUNCH_THREADS];

    const struct gradient_row g = { base_of<type>(a.row_max[r]), a.scale / a.row_sum[r], a.scale,
                                    a.cap, (int)(a.targets[r] - a.first) };

    for (int p = me; p < packs; p += GRADIENT_PACKS * LAUNCH_THREADS)
#pragma unroll
        for (int k = 0; k < GRADIENT_PACKS; k++) {
            const int at = p + k * LAUNCH_THREADS, last = GRADIENT_PACKS - 1;

            if (at + last * LAUNCH_THREADS < packs)
                x[(k + last) % GRADIENT_PACKS] = words[at + last * LAUNCH_THREADS];
            if (at < packs) {
                auto d = pack_load<N>(reinterpret_cast<const element *>(&x[k]), 0);

                gradient_of<type, is_capped>(g, before + at * N, d);
                pack_store(to + before, at * N, d);
            }
        }
    if (me < rest) {
        auto d = pack_load<1>(&x_odd, 0);

        gradient_of<type, is_capped>(g, odd, d);
        pack_store(to, odd, d);
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
        launch_each(q, "the gradient of the loss", a->rows,
                    a->cap > 0 ? loss_backward_kernel<type.value, n.value, true>
                               : loss_backward_kernel<type.value, n.value, false>,
                    *a);
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
