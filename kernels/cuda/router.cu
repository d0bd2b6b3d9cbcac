/*
 * kernels/cuda/router.cu - see kernels/router.h. A warp has a row, and lane l has the experts l,
 * l + 32, ...
 */
#include <string.h>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"
#include "kernels/router.h"

/* ---- forward ---- */

static __device__ void router_softmax(float *x, int n)
{
    float m = -INFINITY, sum = 0;

    for (int e = launch_lane(); e < n; e += 32)
        m = x[e] > m ? x[e] : m;
    m = reduce_warp(m, reduce_max());
    for (int e = launch_lane(); e < n; e += 32) {
        x[e] = vec_exp(x[e] - m);
        sum += x[e];
    }
    sum = reduce_warp(sum, reduce_sum());
    for (int e = launch_lane(); e < n; e += 32)
        x[e] /= sum;
}

/* A number that is larger for what is chosen first: the larger probability, of equal ones the lower
 * expert. The bits of floats that are not negative are ordered like the floats; NaN comes last. */
static __device__ unsigned long long router_key(float prob, int expert)
{
    uint32_t bits = 0;

    if (prob > 0)
        memcpy(&bits, &prob, sizeof bits);
    return (unsigned long long)bits << 32 | (UINT32_MAX - (uint32_t)expert);
}

/* The first lane writes the experts; all lanes call it. */
static __device__ void router_choose(int32_t *chosen, const float *probs, int experts, int n)
{
    unsigned long long last = ~0ull;

    for (int k = 0; k < n; k++) {
        unsigned long long best = 0;

        for (int e = launch_lane(); e < experts; e += 32) {
            unsigned long long key = router_key(probs[e], e);

            best = key < last && key > best ? key : best;
        }
        last = reduce_warp(best, reduce_max());
        if (launch_lane() == 0)
            chosen[k] = (int32_t)(UINT32_MAX - (uint32_t)last);
    }
}

/* The sum of the probabilities of a row's experts, in the order in which they were chosen. */
static __device__ float router_chosen_sum(const float *probs, const int32_t *chosen, int n)
{
    float sum = 0;

    for (int k = 0; k < n; k++)
        sum += probs[chosen[k]];
    return sum;
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    router_forward_kernel(const __grid_constant__ struct router_forward a)
{
    for (int64_t r = launch_warp(); r < a.rows; r += launch_warps()) {
        float *probs = a.probs + r * a.experts, *weights = a.weights + r * a.per_row, sum;
        int32_t *chosen = a.chosen + r * a.per_row;

        router_softmax(probs, a.experts);
        router_choose(chosen, probs, a.experts, a.per_row);
        __syncwarp(); /* all lanes have written their probabilities, and the first one the experts
                       */
        sum = a.is_normalized ? router_chosen_sum(probs, chosen, a.per_row) : 1;
        for (int k = launch_lane(); k < a.per_row; k += 32)
            weights[k] = probs[chosen[k]] / sum;
    }
}

static bool is_possible(struct device_queue *q, int experts, int per_row)
{
    struct tp_err err;

    if (experts <= ROUTER_EXPERTS_MAX && per_row <= experts)
        return true;
    tp_fail(&err, TP_E_INTERNAL, "a router of %d of %d experts", per_row, experts);
    device_fail(q->device, &err);
    return false;
}

void cuda_run_router_forward(struct device_queue *q, const struct router_forward *a)
{
    if (is_possible(q, a->experts, a->per_row))
        launch_warp_rows(q, "the router", a->rows, router_forward_kernel, *a);
}

/* ---- backward ---- */

/* What a row's probabilities get from the weights of its experts. */
struct router_row {
    const float *probs, *dweights, *counts; /* counts: NULL: no loss that balances */
    const int32_t *chosen;
    float mean, sum;
};

static __device__ struct router_row router_row_of(const struct router_backward &a, int64_t r)
{
    const float *w = a.weights + r * a.per_row;
    struct router_row y = {
        a.probs + r * a.experts, a.dweights + r * a.per_row, NULL, a.chosen + r * a.per_row, 0, 1
    };

    if (a.counts)
        y.counts = a.counts + r / a.rows_per_sequence * 2 * a.experts;
    if (!a.is_normalized)
        return y;
    y.sum = router_chosen_sum(y.probs, y.chosen, a.per_row);
    for (int k = 0; k < a.per_row; k++)
        y.mean += y.dweights[k] * w[k];
    return y;
}

/* The gradient of the probability of an expert. */
static __device__ float router_gradient(const struct router_backward &a, const struct router_row &y,
                                        int expert)
{
    float d = y.counts ? a.balance * y.counts[expert] : 0;

    for (int k = 0; k < a.per_row; k++)
        if (y.chosen[k] == expert)
            d += (y.dweights[k] - y.mean) / y.sum;
    return d;
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    router_backward_kernel(const __grid_constant__ struct router_backward a)
{
    for (int64_t r = launch_warp(); r < a.rows; r += launch_warps()) {
        const struct router_row y = router_row_of(a, r);
        float mean = 0;

        for (int e = launch_lane(); e < a.experts; e += 32)
            mean += router_gradient(a, y, e) * y.probs[e];
        mean = reduce_warp(mean, reduce_sum());
        for (int e = launch_lane(); e < a.experts; e += 32)
            launch_store(a.dlogits, a.type, r * a.experts + e,
                         y.probs[e] * (router_gradient(a, y, e) - mean));
    }
}

void cuda_run_router_backward(struct device_queue *q, const struct router_backward *a)
{
    if (is_possible(q, a->experts, a->per_row))
        launch_warp_rows(q, "the gradient of the router", a->rows, router_backward_kernel, *a);
}

/* ---- the load of the experts ---- */

/* Sequences in a launch, which are the y of its grid. The fake device has few, so that its tests
 * have several launches. */
#ifdef __CUDACC__
enum { LOAD_SEQUENCES = 65535 };
#else
enum { LOAD_SEQUENCES = 3 };
#endif

/* A block has 32 experts of the sequence blockIdx.y. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    router_load_kernel(const __grid_constant__ struct router_load a)
{
    const int64_t first = blockIdx.y * a.rows_per_sequence, left = a.rows - first;
    const int64_t rows = left < a.rows_per_sequence ? left : a.rows_per_sequence;
    float *load = a.load + (int64_t)blockIdx.y * 2 * a.experts;
    const int64_t e = reduce_column<1>(a.experts);
    float sums[2]; /* of copies and of probabilities */

    reduce_columns<1>(sums, rows, a.experts, [&](int64_t row, int64_t expert) {
        int n = 0;

        for (int k = 0; k < a.per_row; k++)
            n += a.chosen[(first + row) * a.per_row + k] == expert;
        return pack_set<1, 2>{ { { { (float)n } },
                                 pack_load<1>(a.probs, (first + row) * a.experts + expert) } };
    });
    if (e < 0)
        return;
    load[e] += sums[0];
    load[a.experts + e] += sums[1];
}

void cuda_run_router_load(struct device_queue *q, const struct router_load *a)
{
    const int64_t each = LOAD_SEQUENCES * a->rows_per_sequence;

    for (int64_t first = 0; first < a->rows; first += each) {
        const int64_t left = a->rows - first, rows = left < each ? left : each;
        const struct router_load part = {
            a->load + first / a->rows_per_sequence * 2 * a->experts,
            a->probs + first * a->experts,
            a->chosen + first * a->per_row,
            rows,
            a->rows_per_sequence,
            a->experts,
            a->per_row,
        };
        const int64_t sequences = (rows + a->rows_per_sequence - 1) / a->rows_per_sequence;

        launch(q, "the load of experts", reduce_columns_grid(a->experts, (int)sequences),
               router_load_kernel, part);
    }
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    router_balance_kernel(const __grid_constant__ struct router_balance a)
{
    double sum = 0;

    for (int64_t s = 0; s < a.sequences; s++)
        for (int e = (int)threadIdx.x; e < a.experts; e += LAUNCH_THREADS) {
            const float *counts = a.load + s * 2 * a.experts;

            sum += (double)counts[e] * (double)counts[a.experts + e];
        }
    sum = reduce_block(sum, reduce_sum());
    if (threadIdx.x == 0)
        *a.total += a.factor * sum;
}

void cuda_run_router_balance(struct device_queue *q, const struct router_balance *a)
{
    launch(q, "the loss of the balance", dim3(1), router_balance_kernel, *a);
}
