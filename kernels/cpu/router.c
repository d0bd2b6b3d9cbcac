/* kernels/cpu/router.c - see kernels/router.h. */
#include "kernels/router.h"

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/* ---- forward ---- */

static KERNEL_CLONES void softmax(float *x, int64_t n)
{
    float m = -INFINITY, sum = 0;

    VEC_SIMD_MAX
    for (int64_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        x[i] = vec_exp(x[i] - m);
        sum += x[i];
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        x[i] /= sum;
}

static bool is_taken(const uint64_t *taken, int expert)
{
    return taken[expert / 64] >> expert % 64 & 1;
}

/* The numbers of different experts, also when probabilities are NaN; n is at most `experts`. */
static void choose(int32_t *chosen, const float *probs, int experts, int n)
{
    uint64_t taken[ROUTER_EXPERTS_MAX / 64] = { 0 };

    for (int k = 0; k < n; k++) {
        int best = 0;

        while (is_taken(taken, best))
            best++;
        for (int e = best + 1; e < experts; e++)
            if (probs[e] > probs[best] && !is_taken(taken, e))
                best = e;
        taken[best / 64] |= UINT64_C(1) << best % 64;
        chosen[k] = best;
    }
}

/* The sum of the probabilities of a row's experts, in the order in which they were chosen. */
static float chosen_sum(const float *probs, const int32_t *chosen, int n)
{
    float sum = 0;

    for (int k = 0; k < n; k++)
        sum += probs[chosen[k]];
    return sum;
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct router_forward *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        float *probs = a->probs + r * a->experts, *weights = a->weights + r * a->per_row, sum;
        int32_t *chosen = a->chosen + r * a->per_row;

        softmax(probs, a->experts);
        choose(chosen, probs, a->experts, a->per_row);
        sum = a->is_normalized ? chosen_sum(probs, chosen, a->per_row) : 1;
        for (int k = 0; k < a->per_row; k++)
            weights[k] = probs[chosen[k]] / sum;
    }
}

tp_status cpu_run_router_forward(struct device_queue *q, const struct router_forward *a,
                                 struct tp_err *err)
{
    struct router_forward rows = *a;

    if (a->experts > ROUTER_EXPERTS_MAX || a->per_row > a->experts)
        return tp_fail(err, TP_E_INTERNAL, "a router of %d of %d experts", a->per_row, a->experts);
    kernels_for(q, a->rows, kernels_grain((int64_t)a->experts * (8 + 4 * a->per_row)),
                forward_range, &rows);
    return TP_OK;
}

/* ---- backward ---- */

/* Add to dp the gradients of the chosen probabilities, from those of the weights. */
static void weights_backward(float *dp, const struct router_backward *a, int64_t r)
{
    const float *dw = a->dweights + r * a->per_row, *w = a->weights + r * a->per_row;
    const int32_t *chosen = a->chosen + r * a->per_row;
    float mean = 0, sum = 1;

    if (a->is_normalized) {
        sum = chosen_sum(a->probs + r * a->experts, chosen, a->per_row);
        for (int k = 0; k < a->per_row; k++)
            mean += dw[k] * w[k];
    }
    for (int k = 0; k < a->per_row; k++)
        dp[chosen[k]] += (dw[k] - mean) / sum;
}

/* dp becomes the gradient of the softmax' input. */
static KERNEL_CLONES void softmax_backward(float *dp, const float *probs, int64_t n)
{
    float mean = 0;

#pragma omp simd reduction(+ : mean)
    for (int64_t e = 0; e < n; e++)
        mean += dp[e] * probs[e];
#pragma omp simd
    for (int64_t e = 0; e < n; e++)
        dp[e] = probs[e] * (dp[e] - mean);
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct router_backward *a = ctx;
    float dp[ROUTER_EXPERTS_MAX];

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        const float *counts =
            a->counts ? a->counts + r / a->rows_per_sequence * 2 * a->experts : NULL;

        for (int e = 0; e < a->experts; e++)
            dp[e] = counts ? a->balance * counts[e] : 0;
        weights_backward(dp, a, r);
        softmax_backward(dp, a->probs + r * a->experts, a->experts);
        for (int e = 0; e < a->experts; e++)
            if (a->type == DTYPE_F32)
                ((float *)a->dlogits)[r * a->experts + e] = dp[e];
            else
                ((uint16_t *)a->dlogits)[r * a->experts + e] = vec_to_bf16(dp[e]);
    }
}

tp_status cpu_run_router_backward(struct device_queue *q, const struct router_backward *a,
                                  struct tp_err *err)
{
    struct router_backward rows = *a;

    if (a->experts > ROUTER_EXPERTS_MAX)
        return tp_fail(err, TP_E_INTERNAL, "a router of %d experts", a->experts);
    kernels_for(q, a->rows, kernels_grain((int64_t)a->experts * 20), backward_range, &rows);
    return TP_OK;
}

/* ---- the load of the experts ---- */

tp_status cpu_run_router_load(struct device_queue *q, const struct router_load *a,
                              struct tp_err *err)
{
    (void)q;
    (void)err;
    for (int64_t r = 0; r < a->rows; r++) {
        float *counts = a->load + r / a->rows_per_sequence * 2 * a->experts;

        for (int k = 0; k < a->per_row; k++)
            counts[a->chosen[r * a->per_row + k]]++;
        for (int e = 0; e < a->experts; e++)
            counts[a->experts + e] += a->probs[r * a->experts + e];
    }
    return TP_OK;
}

tp_status cpu_run_router_balance(struct device_queue *q, const struct router_balance *a,
                                 struct tp_err *err)
{
    double sum = 0;

    (void)q;
    (void)err;
    for (int64_t s = 0; s < a->sequences; s++)
        for (int e = 0; e < a->experts; e++) {
            const float *counts = a->load + s * 2 * a->experts;

            sum += (double)counts[e] * (double)counts[a->experts + e];
        }
    *a->total += a->factor * sum;
    return TP_OK;
}
