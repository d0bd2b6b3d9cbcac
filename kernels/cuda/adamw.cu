/* kernels/cuda/adamw.cu - see kernels/adamw.h. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

/* What an element needs, from the header's formula: lr (m / c1) / (sqrt(v / c2) + eps) is
 * step m / (sqrt(v) root + eps). */
struct adamw_constants {
    float decay, beta1, rest1, beta2, rest2, step, root, eps;
};

__global__ void __launch_bounds__(LAUNCH_THREADS)
    adamw_kernel(const __grid_constant__ struct adamw_step a,
                 const __grid_constant__ struct adamw_constants k)
{
    const float grad_scale = (float)*a.grad_scale;

    for (int64_t i = launch_thread(); i < a.n; i += launch_threads()) {
        float g = a.grad[i] * grad_scale;
        float m = k.beta1 * a.m[i] + k.rest1 * g;
        float v = k.beta2 * a.v[i] + k.rest2 * (g * g);
        float p = a.p[i] * k.decay - k.step * m / (sqrtf(v) * k.root + k.eps);

        a.m[i] = m;
        a.v[i] = v;
        a.p[i] = p;
        if (a.p_bf16)
            a.p_bf16[i] = vec_to_bf16(p);
    }
}

void cuda_run_adamw_step(struct device_queue *q, const struct adamw_step *a)
{
    const struct adamw_options *o = &a->options;
    struct adamw_constants k;

    k.decay = (float)(1.0 - o->lr * a->weight_decay);
    k.beta1 = (float)o->beta1;
    k.rest1 = (float)(1.0 - o->beta1);
    k.beta2 = (float)o->beta2;
    k.rest2 = (float)(1.0 - o->beta2);
    k.step = (float)(o->lr / o->correction1);
    k.root = (float)(1.0 / sqrt(o->correction2));
    k.eps = (float)o->eps;
    launch_elements(q, "AdamW", a->n, adamw_kernel, *a, k);
}
