/* kernels/cuda/soft_cap.cu - see kernels/soft_cap.h. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

__global__ void __launch_bounds__(LAUNCH_THREADS)
    soft_cap_kernel(const __grid_constant__ struct soft_cap a)
{
    const float by = 1.0f / a.cap;

    for (int64_t i = launch_thread(); i < a.n; i += launch_threads())
        a.x[i] = a.cap * vec_tanh(a.x[i] * by);
}

void cuda_run_soft_cap(struct device_queue *q, const struct soft_cap *a)
{
    launch_elements(q, "a cap of logits", a->n, soft_cap_kernel, *a);
}
