/* kernels/cuda/relu.cu - see kernels/relu.h. */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

/* ---- forward ---- */

/* A comparison with a NaN is false, so it is kept. */
template <enum dtype in, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    relu_forward_kernel(const __grid_constant__ struct relu_forward a)
{
    pack_each<N, 2>(
        pack_of_grid(), 0, a.n, [&](auto n, int64_t i) { return pack_load<n.value>(a.u, in, i); },
        [&](auto, int64_t i, auto x) {
            for (float &u : x.x)
                u = u <= 0.0f ? 0.0f : u;
            pack_store(a.y, a.type, i, x);
        });
}

void cuda_run_relu_forward(struct device_queue *q, const struct relu_forward *a)
{
    pack_select(a->in_type, pack_is_aligned(a->y, a->u), [=](auto in, auto n) {
        launch_elements(q, "ReLU", pack_count(a->n, n.value),
                        relu_forward_kernel<in.value, n.value>, *a);
    });
}

/* ---- backward; du may be u: a thread reads its elements before it writes them ---- */

template <enum dtype in, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    relu_backward_kernel(const __grid_constant__ struct relu_backward a)
{
    pack_each<N, 2>(
        pack_of_grid(), 0, a.n,
        [&](auto n, int64_t i) {
            return pack_set<n.value, 2>{ { pack_load<n.value>(a.dy, in, i),
                                           pack_load<n.value>(a.u, in, i) } };
        },
        [&](auto n, int64_t i, auto x) {
            struct pack<n.value> &dy = x.of[0];

#pragma unroll
            for (int j = 0; j < n.value; j++)
                dy.x[j] = x.of[1].x[j] <= 0.0f ? 0.0f : dy.x[j];
            pack_store(a.du, a.type, i, dy);
        });
}

void cuda_run_relu_backward(struct device_queue *q, const struct relu_backward *a)
{
    pack_select(a->in_type, pack_is_aligned(a->du, a->dy, a->u), [=](auto in, auto n) {
        launch_elements(q, "the gradient of ReLU", pack_count(a->n, n.value),
                        relu_backward_kernel<in.value, n.value>, *a);
    });
}
