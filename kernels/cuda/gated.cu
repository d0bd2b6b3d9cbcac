/* kernels/cuda/gated.cu - see kernels/gated.h. */
#include "kernels/cpu/gated_body.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

template <enum gated_kind kind>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gated_forward_kernel(const __grid_constant__ struct gated_forward a)
{
    const int64_t rows = a.count ? *a.count : a.rows;

    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x)
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            float gate = a.gate[r * a.ld + c], up = a.up[r * a.ld + c];

            launch_store(a.y, a.type, r * a.cols + c, gate * gated_share(kind, gate) * up);
        }
}

void cuda_run_gated_forward(struct device_queue *q, const struct gated_forward *a)
{
    if (a->kind == GATED_SWIGLU)
        launch_rows(q, "SwiGLU", a->rows, gated_forward_kernel<GATED_SWIGLU>, *a);
    else
        launch_rows(q, "GeGLU", a->rows, gated_forward_kernel<GATED_GEGLU>, *a);
}

/* y = g s(g) u, so dy/du = g s and dy/dg = u f'(g). dgate and dup may be gate and up: a thread
 * reads its elements before it writes them. */
template <enum gated_kind kind>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gated_backward_kernel(const __grid_constant__ struct gated_backward a)
{
    const int64_t rows = a.count ? *a.count : a.rows;

    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x)
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            int64_t at = r * a.ld + c;
            float g = a.gate[at], up = a.up[at], dy = a.dy[r * a.cols + c];
            float s = gated_share(kind, g);

            launch_store(a.dgate, a.type, at, dy * up * gated_slope(kind, g, s));
            launch_store(a.dup, a.type, at, dy * (g * s));
        }
}

void cuda_run_gated_backward(struct device_queue *q, const struct gated_backward *a)
{
    if (a->kind == GATED_SWIGLU)
        launch_rows(q, "the gradient of SwiGLU", a->rows, gated_backward_kernel<GATED_SWIGLU>, *a);
    else
        launch_rows(q, "the gradient of GeGLU", a->rows, gated_backward_kernel<GATED_GEGLU>, *a);
}
