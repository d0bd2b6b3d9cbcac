/* kernels/cuda/clear.cu - see kernels/clear.h. */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

enum {
    CLEAR_TOGETHER = 1024,
    CLEAR_BLOCKS = 4,       /* of an array */
    CLEAR_LARGE = 64 * 1024 /* elements, from which on an array is filled alone */
};

struct clear_table {
    struct clear_array of[CLEAR_TOGETHER];
};
static_assert(sizeof(struct clear_table) <= LAUNCH_ARGUMENTS, "the arguments of a kernel");

__global__ void __launch_bounds__(LAUNCH_THREADS)
    clear_kernel(const __grid_constant__ struct clear_table a)
{
    const struct clear_array of = a.of[blockIdx.y];
    const int64_t packed = reinterpret_cast<uintptr_t>(of.x) % (PACK * sizeof *of.x) ? 0 : of.n;
    const auto nothing = [](auto, int64_t) { return 0; };
    const auto clear = [&](auto n, int64_t i, int) { pack_store(of.x, i, pack<n.value>{}); };

    pack_each<PACK, 1>(pack_of_grid(), 0, packed, nothing, clear);
    pack_each<1, 1>(pack_of_grid(), packed, of.n, nothing, clear);
}

void cuda_run_clear(struct device_queue *q, const struct clear *a)
{
    struct clear_table t;
    int n = 0;

    for (int i = 0; i < a->n_arrays; i++) {
        const struct clear_array *of = &a->arrays[i];

        if (of->n >= CLEAR_LARGE)
            device_fill(q, of->x, 0, of->n * (int64_t)sizeof *of->x);
        else if (of->n > 0)
            t.of[n++] = *of;
        if (n == CLEAR_TOGETHER || (n > 0 && i + 1 == a->n_arrays)) {
            launch(q, "zeros", dim3(CLEAR_BLOCKS, (unsigned)n), clear_kernel, t);
            n = 0;
        }
    }
}
