/*
 * kernels/cuda/adamw.cu - see kernels/adamw.h. One launch updates many tensors: its argument is a
 * table of them, and the blocks share the chunks of all tensors together, so that small tensors do
 * not leave most of the GPU idle.
 */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

enum { ADAMW_CHUNK = 8 * LAUNCH_THREADS };

struct adamw_constants {
    float beta1, rest1, beta2, rest2, eps;
};

struct adamw_entry {
    float *p, *m, *v;
    const float *grad;
    uint16_t *p_bf16;
    int64_t n;
    bool decays, is_packed;
};

struct adamw_table {
    struct adamw_entry of[ADAMW_TOGETHER];
    int ends[ADAMW_TOGETHER]; /* the chunks of an entry and of those before it */
    int n;
    const double *grad_scale;
    const struct adamw_rates *rates;
    struct adamw_constants k;
};
static_assert(sizeof(struct adamw_table) <= LAUNCH_ARGUMENTS, "the arguments of a kernel");

/* Of one element; *p, *m and *v become the new ones. */
static __device__ inline void adamw_element(float *p, float *m, float *v, float g,
                                            const struct adamw_constants &k, float decay,
                                            const struct adamw_rates &now)
{
    *m = k.beta1 * *m + k.rest1 * g;
    *v = k.beta2 * *v + k.rest2 * (g * g);
    *p = *p * decay - now.step * *m / (sqrtf(*v) * now.root + k.eps);
}

/* Elements first .. end - 1 of a tensor, by a block. */
template <int N>
static __device__ inline void adamw_chunk(const struct adamw_entry &a,
                                          const struct adamw_constants &k,
                                          const struct adamw_rates &now, float grad_scale,
                                          int64_t first, int64_t end)
{
    const float decay = a.decays ? now.decay : 1;

    pack_each<N, 1>(
        pack_of_block(), first, end,
        [&](auto n, int64_t i) {
            return pack_set<n.value, 4>{ { pack_load<n.value>(a.p, i), pack_load<n.value>(a.m, i),
                                           pack_load<n.value>(a.v, i),
                                           pack_load<n.value>(a.grad, i) } };
        },
        [&](auto n, int64_t i, auto x) {
#pragma unroll
            for (int j = 0; j < n.value; j++)
                adamw_element(&x.of[0].x[j], &x.of[1].x[j], &x.of[2].x[j],
                              x.of[3].x[j] * grad_scale, k, decay, now);
            pack_store(a.p, i, x.of[0]);
            pack_store(a.m, i, x.of[1]);
            pack_store(a.v, i, x.of[2]);
            if (a.p_bf16)
                pack_store(a.p_bf16, i, x.of[0]);
        });
}

/* Four blocks on a processor: with more, registers would be spilled. */
__global__ void __launch_bounds__(LAUNCH_THREADS, 4)
    adamw_kernel(const __grid_constant__ struct adamw_table a)
{
    const float grad_scale = (float)*a.grad_scale;
    const struct adamw_rates now = *a.rates;
    int t = 0;

    for (int c = (int)blockIdx.x; c < a.ends[a.n - 1]; c += (int)gridDim.x) {
        t = launch_list_of(a.ends, a.n, t, c);
        int64_t first = (int64_t)(c - (t > 0 ? a.ends[t - 1] : 0)) * ADAMW_CHUNK;
        int64_t end = first + ADAMW_CHUNK < a.of[t].n ? first + ADAMW_CHUNK : a.of[t].n;

        if (a.of[t].is_packed)
            adamw_chunk<PACK>(a.of[t], a.k, now, grad_scale, first, end);
        else
            adamw_chunk<1>(a.of[t], a.k, now, grad_scale, first, end);
    }
}

/* Put tensors into the table; returns how many chunks they have. */
static int fill_table(struct adamw_table *t, const struct adamw_tensor *tensors, int n)
{
    int end = 0;

    for (int i = 0; i < n; i++) {
        const struct adamw_tensor *a = &tensors[i];

        end += (int)((a->n + ADAMW_CHUNK - 1) / ADAMW_CHUNK);
        t->ends[i] = end;
        t->of[i] = { a->p,      a->m,
                     a->v,      a->grad,
                     a->p_bf16, a->n,
                     a->decays, pack_is_aligned(a->p, a->m, a->v, a->grad, a->p_bf16) };
    }
    t->n = n;
    return end;
}

void cuda_run_adamw_step(struct device_queue *q, const struct adamw_step *a)
{
    const struct adamw_options *o = &a->options;
    struct adamw_table t = {};

    t.grad_scale = a->grad_scale;
    t.rates = a->rates;
    t.k.beta1 = (float)o->beta1;
    t.k.rest1 = (float)(1.0 - o->beta1);
    t.k.beta2 = (float)o->beta2;
    t.k.rest2 = (float)(1.0 - o->beta2);
    t.k.eps = (float)o->eps;
    for (int i = 0; i < a->n_tensors; i += ADAMW_TOGETHER) {
        int left = a->n_tensors - i, n = left < ADAMW_TOGETHER ? left : ADAMW_TOGETHER;

        launch_rows(q, "AdamW", fill_table(&t, a->tensors + i, n), adamw_kernel, t);
    }
}
