/* kernels/cuda/swiglu.cu - see kernels/swiglu.h. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

static __device__ inline float sigmoid(float x)
{
    return 1.0f / (1.0f + vec_exp(-x));
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    swiglu_forward_kernel(const __grid_constant__ struct swiglu_forward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x)
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            float gate = a.gate[r * a.ld + c], up = a.up[r * a.ld + c];

            launch_store(a.y, a.type, r * a.cols + c, gate * sigmoid(gate) * up);
        }
}

void cuda_run_swiglu_forward(struct device_queue *q, const struct swiglu_forward *a)
{
    launch_rows(q, "SwiGLU", a->rows, swiglu_forward_kernel, *a);
}

/* y = g s(g) u, so dy/du = g s and dy/dg = u s (1 + g (1 - s)). dgate and dup may be gate and up: a
 * thread reads its elements before it writes them. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    swiglu_backward_kernel(const __grid_constant__ struct swiglu_backward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x)
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            int64_t at = r * a.ld + c;
            float g = a.gate[at], up = a.up[at], dy = a.dy[r * a.cols + c];
            float s = sigmoid(g);

            launch_store(a.dgate, a.type, at, dy * up * (s * (1.0f + g * (1.0f - s))));
            launch_store(a.dup, a.type, at, dy * (g * s));
        }
}

void cuda_run_swiglu_backward(struct device_queue *q, const struct swiglu_backward *a)
{
    launch_rows(q, "the gradient of SwiGLU", a->rows, swiglu_backward_kernel, *a);
}
