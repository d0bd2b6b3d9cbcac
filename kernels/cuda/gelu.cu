/* kernels/cuda/gelu.cu - see kernels/gelu.h. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

#define TWO_ROOT 1.5957691216057308f /* 2 sqrt(2 / pi) */

/* (1 + tanh z) / 2 is the logistic function of 2 z, which needs one exponential and cancels
 * nothing. */
static __device__ inline float half_tanh(float x)
{
    return 1.0f / (1.0f + vec_exp(-TWO_ROOT * (x + 0.044715f * x * x * x)));
}

static __device__ inline float gelu(float x)
{
    return x * half_tanh(x);
}

static __device__ inline float slope(float x)
{
    float s = half_tanh(x);

    return s + x * s * (1.0f - s) * TWO_ROOT * (1.0f + 3 * 0.044715f * x * x);
}

/* Whether all is bf16 and whole packs. */
template <typename A> static bool is_packed(const A *a)
{
    return a->in_type == DTYPE_BF16 && a->type == DTYPE_BF16 && a->n % LAUNCH_PACK == 0;
}

/* ---- forward ---- */

__global__ void __launch_bounds__(LAUNCH_THREADS)
    gelu_forward_kernel(const __grid_constant__ struct gelu_forward a)
{
    for (int64_t i = launch_thread(); i < a.n; i += launch_threads())
        launch_store(a.y, a.type, i, gelu(launch_load(a.u, a.in_type, i)));
}

/* All in bf16, a.n / LAUNCH_PACK packs. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gelu_forward_pack_kernel(const __grid_constant__ struct gelu_forward a)
{
    for (int64_t i = launch_thread(); i < a.n / LAUNCH_PACK; i += launch_threads()) {
        struct launch_pack x = launch_load_pack(a.u, i);

#pragma unroll
        for (int j = 0; j < LAUNCH_PACK; j++)
            x.x[j] = vec_to_bf16(gelu(vec_from_bf16(x.x[j])));
        launch_store_pack(a.y, i, x);
    }
}

void cuda_run_gelu_forward(struct device_queue *q, const struct gelu_forward *a)
{
    if (is_packed(a) && launch_is_packed(a->y, a->u))
        launch_elements(q, "GELU", a->n / LAUNCH_PACK, gelu_forward_pack_kernel, *a);
    else
        launch_elements(q, "GELU", a->n, gelu_forward_kernel, *a);
}

/* ---- backward; du may be u: a thread reads its elements before it writes them ---- */

__global__ void __launch_bounds__(LAUNCH_THREADS)
    gelu_backward_kernel(const __grid_constant__ struct gelu_backward a)
{
    for (int64_t i = launch_thread(); i < a.n; i += launch_threads()) {
        float d = slope(launch_load(a.u, a.in_type, i));

        launch_store(a.du, a.type, i, launch_load(a.dy, a.in_type, i) * d);
    }
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    gelu_backward_pack_kernel(const __grid_constant__ struct gelu_backward a)
{
    for (int64_t i = launch_thread(); i < a.n / LAUNCH_PACK; i += launch_threads()) {
        struct launch_pack x = launch_load_pack(a.u, i), dy = launch_load_pack(a.dy, i);

#pragma unroll
        for (int j = 0; j < LAUNCH_PACK; j++)
            x.x[j] = vec_to_bf16(vec_from_bf16(dy.x[j]) * slope(vec_from_bf16(x.x[j])));
        launch_store_pack(a.du, i, x);
    }
}

void cuda_run_gelu_backward(struct device_queue *q, const struct gelu_backward *a)
{
    const char *what = "the gradient of GELU";

    if (is_packed(a) && launch_is_packed(a->du, a->dy, a->u))
        launch_elements(q, what, a->n / LAUNCH_PACK, gelu_backward_pack_kernel, *a);
    else
        launch_elements(q, what, a->n, gelu_backward_kernel, *a);
}
