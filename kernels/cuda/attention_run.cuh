/*
 * kernels/cuda/attention_run.cuh - what attention.cu, attention_mma_forward.cu and
 * attention_wgmma_forward.cu share: scores, how a part enters a row, and the launches on tensor
 * cores.
 */
#ifndef KERNELS_CUDA_ATTENTION_RUN_CUH
#define KERNELS_CUDA_ATTENTION_RUN_CUH

#include "kernels/cuda/launch.cuh"
extern "C" {
#include "kernels/attention.h"
}

/* The score of a product of a query and a key. */
static __device__ inline float attention_score(const struct attention *a, float dot)
{
    float s = dot * a->scale;

    return a->cap > 0 ? a->cap * vec_tanh(s / a->cap) : s;
}

/* Its derivative by the product. */
static __device__ inline float attention_score_slope(const struct attention *a, float score)
{
    float t = a->cap > 0 ? score / a->cap : 0;

    return a->scale * (1.0f - t * t);
}

/* How the result of a part, not yet divided by its sum of exponentials, enters a row: out = part *
 * by + out * by_old. */
struct attention_merge {
    float lse, by, by_old;
};

/* max and sum are those of the part's scores; before is the row's log-sum-exp of earlier parts. */
static __device__ inline struct attention_merge attention_merge_of(const struct attention *a,
                                                                   float max, float sum,
                                                                   float before)
{
    float lse = max + logf(sum);

    if (!a->merge)
        return { lse, 1.0f / sum, 0 };
    float high = fmaxf(before, lse), low = fminf(before, lse);
    float all = high + log1pf(expf(low - high));

    return { all, expf(max - all), expf(before - all) };
}

/* Whether attention_mma_forward.cu can compute this: bf16, heads of at most 256 columns and a
 * multiple of 8, matrices whose rows begin at multiples of 16 bytes. */
bool attention_mma_fits(const struct attention *a);
void attention_mma_forward(struct device_queue *q, const struct attention *a);
/* The same of the gradients. */
bool attention_mma_backward_fits(const struct attention_backward *g);
/* delta: see attention_delta_kernel. */
void attention_mma_backward(struct device_queue *q, const struct attention_backward *g,
                            const float *delta);

/* Whether attention_wgmma_forward.cu can compute this: also a GPU that has its instructions, heads
 * of 64 or 128 columns, no cap. attention_wgmma_backward computes what attention_mma_backward_fits
 * allows besides. It computes delta itself. */
bool attention_wgmma_fits(const struct device_queue *q, const struct attention *a);
void attention_wgmma_forward(struct device_queue *q, const struct attention *a);
void attention_wgmma_backward(struct device_queue *q, const struct attention_backward *g,
                              float *delta);

#endif
