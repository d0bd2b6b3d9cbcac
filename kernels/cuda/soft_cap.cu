/* kernels/cuda/soft_cap.cu - see kernels/soft_cap.h. */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

template <enum dtype type, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    soft_cap_kernel(const __grid_constant__ struct soft_cap a)
{
    const float by = 1.0f / a.cap;

    pack_each<N, 2>(
        pack_of_grid(), 0, a.n,
        [&](auto width, int64_t i) { return pack_load<width.value>(a.x, type, i); },
        [&](auto, int64_t i, auto x) {
            for (float &element : x.x)
                element = a.cap * vec_tanh(element * by);
            pack_store(a.x, type, i, x);
        });
}

void cuda_run_soft_cap(struct device_queue *q, const struct soft_cap *a)
{
    pack_select(a->type, pack_is_aligned(a->x), [=](auto type, auto n) {
        launch_elements(q, "a cap of logits", pack_count(a->n, n.value),
                        soft_cap_kernel<type.value, n.value>, *a);
    });
}
