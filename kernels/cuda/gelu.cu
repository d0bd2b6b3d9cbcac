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

__global__ void __launch_bounds__(LAUNCH_THREADS)
    gelu_forward_kernel(const __grid_constant__ struct gelu_forward a)
{
    for (int64_t i = launch_thread(); i < a.n; i += launch_threads()) {
        float x = a.u[i];

        launch_store(a.y, a.type, i, x * half_tanh(x));
    }
}

void cuda_run_gelu_forward(struct device_queue *q, const struct gelu_forward *a)
{
    launch_elements(q, "GELU", a->n, gelu_forward_kernel, *a);
}

/* du may be u: a thread reads its element before it writes it. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gelu_backward_kernel(const __grid_constant__ struct gelu_backward a)
{
    for (int64_t i = launch_thread(); i < a.n; i += launch_threads()) {
        float x = a.u[i], s = half_tanh(x);
        float d = s + x * s * (1.0f - s) * TWO_ROOT * (1.0f + 3 * 0.044715f * x * x);

        launch_store(a.du, a.type, i, a.dy[i] * d);
    }
}

void cuda_run_gelu_backward(struct device_queue *q, const struct gelu_backward *a)
{
    launch_elements(q, "the gradient of GELU", a->n, gelu_backward_kernel, *a);
}
