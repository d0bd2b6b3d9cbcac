/* kernels/cuda/soft_cap.cu - see kernels/soft_cap.h. */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    soft_cap_kernel(const __grid_constant__ struct soft_cap a)
{
    const float by = 1.0f / a.cap;

    pack_each<N, 2>(
        pack_of_grid(), 0, a.n,
        [&](auto width, int64_t i) { return pack_load<width.value>(a.x, i); },
        [&](auto, int64_t i, auto x) {
            for (float &element : x.x)
                element = a.cap * vec_tanh(element * by);
            pack_store(a.x, i, x);
        });
}

void cuda_run_soft_cap(struct device_queue *q, const struct soft_cap *a)
{
    launch_elements(q, "a cap of logits", pack_count(a->n),
                    pack_is_aligned(a->x) ? soft_cap_kernel<PACK> : soft_cap_kernel<1>, *a);
}
