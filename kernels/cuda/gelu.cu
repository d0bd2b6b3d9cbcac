/* kernels/cuda/gelu.cu - see kernels/gelu.h. */
#include "kernels/cpu/gated_body.h"
#include "kernels/cpu/gelu_body.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

/* ---- forward ---- */

template <enum dtype in, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gelu_forward_kernel(const __grid_constant__ struct gelu_forward a)
{
    pack_each<N, 2>(
        pack_of_grid(), 0, a.n, [&](auto n, int64_t i) { return pack_load<n.value>(a.u, in, i); },
        [&](auto, int64_t i, auto x) {
            for (float &u : x.x)
                u *= gated_share(GATED_GEGLU, u);
            pack_store(a.y, a.type, i, x);
        });
}

template <enum dtype in, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gelu_erf_forward_kernel(const __grid_constant__ struct gelu_forward a)
{
    pack_each<N, 2>(
        pack_of_grid(), 0, a.n, [&](auto n, int64_t i) { return pack_load<n.value>(a.u, in, i); },
        [&](auto, int64_t i, auto x) {
            for (float &u : x.x)
                u *= gelu_erf_share(u, gelu_erf_bell(u));
            pack_store(a.y, a.type, i, x);
        });
}

void cuda_run_gelu_forward(struct device_queue *q, const struct gelu_forward *a)
{
    pack_select(a->in_type, pack_is_aligned(a->y, a->u), [=](auto in, auto n) {
        launch_elements(q, "GELU", pack_count(a->n, n.value),
                        a->kind == GELU_ERF ? gelu_erf_forward_kernel<in.value, n.value>
                                            : gelu_forward_kernel<in.value, n.value>,
                        *a);
    });
}

/* ---- backward; du may be u: a thread reads its elements before it writes them ---- */

template <enum dtype in, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gelu_backward_kernel(const __grid_constant__ struct gelu_backward a)
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
            for (int j = 0; j < n.value; j++) {
                float u = x.of[1].x[j];

                dy.x[j] *= gated_slope(GATED_GEGLU, u, gated_share(GATED_GEGLU, u));
            }
            pack_store(a.du, a.type, i, dy);
        });
}

template <enum dtype in, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gelu_erf_backward_kernel(const __grid_constant__ struct gelu_backward a)
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
            for (int j = 0; j < n.value; j++) {
                float u = x.of[1].x[j], bell = gelu_erf_bell(u);

                dy.x[j] *= gelu_erf_slope(u, gelu_erf_share(u, bell), bell);
            }
            pack_store(a.du, a.type, i, dy);
        });
}

void cuda_run_gelu_backward(struct device_queue *q, const struct gelu_backward *a)
{
    pack_select(a->in_type, pack_is_aligned(a->du, a->dy, a->u), [=](auto in, auto n) {
        launch_elements(q, "the gradient of GELU", pack_count(a->n, n.value),
                        a->kind == GELU_ERF ? gelu_erf_backward_kernel<in.value, n.value>
                                            : gelu_backward_kernel<in.value, n.value>,
                        *a);
    });
}
