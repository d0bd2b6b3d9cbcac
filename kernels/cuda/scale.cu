/* kernels/cuda/scale.cu - see kernels/scale.h. */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    scale_kernel(const __grid_constant__ struct scale a)
{
    pack_each<N, 2>(
        pack_of_grid(), 0, a.n,
        [&](auto width, int64_t i) { return pack_load<width.value>(a.x, i); },
        [&](auto, int64_t i, auto x) {
            for (float &element : x.x)
                element = element * a.factor + a.plus;
            pack_store(a.x, i, x);
        });
}

void cuda_run_scale(struct device_queue *q, const struct scale *a)
{
    launch_elements(q, "a scaling", pack_count(a->n),
                    pack_is_aligned(a->x) ? scale_kernel<PACK> : scale_kernel<1>, *a);
}
