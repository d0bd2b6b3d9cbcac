/* kernels/cuda/scale.cu - see kernels/scale.h. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

__global__ void __launch_bounds__(LAUNCH_THREADS)
    scale_kernel(const __grid_constant__ struct scale a)
{
    for (int64_t i = launch_thread(); i < a.n; i += launch_threads())
        a.x[i] = a.x[i] * a.factor + a.plus;
}

void cuda_run_scale(struct device_queue *q, const struct scale *a)
{
    launch_elements(q, "a scaling", a->n, scale_kernel, *a);
}
