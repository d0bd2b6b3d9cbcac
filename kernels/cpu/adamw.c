/* kernels/cpu/adamw.c - see kernels/adamw.h. */
#include "kernels/adamw.h"

#include <math.h>

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/* What an element needs, in f32. */
struct adamw_factors {
    float decay, beta1, rest1, beta2, rest2, step, root, eps, grad_scale;
};

struct adamw_work {
    const struct adamw_tensor *a;
    struct adamw_factors f;
};

/* One element; the new p. */
VEC_INLINE float step_one(float p, float *m, float *v, float grad, const struct adamw_factors *k)
{
    float g = grad * k->grad_scale;
    float mi = k->beta1 * *m + k->rest1 * g;
    float vi = k->beta2 * *v + k->rest2 * (g * g);

    *m = mi;
    *v = vi;
    return p * k->decay - k->step * mi / (sqrtf(vi) * k->root + k->eps);
}

static KERNEL_CLONES void step(float *restrict p, float *restrict m, float *restrict v,
                               const float *restrict grad, int64_t n, const struct adamw_factors *f)
{
    const struct adamw_factors k = *f;

    for (int64_t i = 0; i < n; i++)
        p[i] = step_one(p[i], &m[i], &v[i], grad[i], &k);
}

static KERNEL_CLONES void step_bf16(uint16_t *restrict p_bf16, float *restrict p, float *restrict m,
                                    float *restrict v, const float *restrict grad, int64_t n,
                                    const struct adamw_factors *f)
{
    const struct adamw_factors k = *f;

    for (int64_t i = 0; i < n; i++) {
        p[i] = step_one(p[i], &m[i], &v[i], grad[i], &k);
        p_bf16[i] = vec_to_bf16(p[i]);
    }
}

static void step_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct adamw_work *w = ctx;
    const struct adamw_tensor *a = w->a;

    (void)thread;
    if (a->p_bf16)
        step_bf16(a->p_bf16 + lo, a->p + lo, a->m + lo, a->v + lo, a->grad + lo, hi - lo, &w->f);
    else
        step(a->p + lo, a->m + lo, a->v + lo, a->grad + lo, hi - lo, &w->f);
}

tp_status cpu_run_adamw_tensor(struct device_queue *q, const struct cpu_adamw_tensor *a,
                               struct tp_err *err)
{
    const struct adamw_options *o = &a->options;
    const struct adamw_rates *now = a->rates;
    struct adamw_work w = { &a->tensor,
                            { .decay = a->tensor.decays ? now->decay : 1,
                              .beta1 = (float)o->beta1,
                              .rest1 = (float)(1.0 - o->beta1),
                              .beta2 = (float)o->beta2,
                              .rest2 = (float)(1.0 - o->beta2),
                              .step = now->step,
                              .root = now->root,
                              .eps = (float)o->eps,
                              .grad_scale = (float)*a->grad_scale } };

    (void)err;
    kernels_for(q, a->tensor.n, kernels_grain(28), step_range, &w);
    return TP_OK;
}
