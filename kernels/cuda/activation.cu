/* kernels/cuda/activation.cu - see kernels/activation.h. */
#include "kernels/cpu/activation_body.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

/* ---- forward ---- */

template <enum activation_kind kind, enum dtype in, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    activation_forward_kernel(const __grid_constant__ struct activation_forward a)
{
    pack_each<N, 2>(
        pack_of_grid(), 0, a.n, [&](auto n, int64_t i) { return pack_load<n.value>(a.u, in, i); },
        [&](auto, int64_t i, auto x) {
            for (float &u : x.x)
                u = activation_value(kind, u);
            pack_store(a.y, a.type, i, x);
        });
}

template <enum activation_kind kind>
static void run_forward(struct device_queue *q, const char *what,
                        const struct activation_forward *a)
{
    pack_select(a->in_type, pack_is_aligned(a->y, a->u), [=](auto in, auto n) {
        launch_elements(q, what, pack_count(a->n, n.value),
                        activation_forward_kernel<kind, in.value, n.value>, *a);
    });
}

void cuda_run_activation_forward(struct device_queue *q, const struct activation_forward *a)
{
    if (a->kind == ACTIVATION_GELU_TANH)
        run_forward<ACTIVATION_GELU_TANH>(q, "GELU", a);
    else if (a->kind == ACTIVATION_GELU_ERF)
        run_forward<ACTIVATION_GELU_ERF>(q, "GELU", a);
    else
        run_forward<ACTIVATION_RELU>(q, "ReLU", a);
}

/* ---- backward; du may be u: a thread reads its elements before it writes them ---- */

template <enum activation_kind kind, enum dtype in, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    activation_backward_kernel(const __grid_constant__ struct activation_backward a)
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
                dy.x[j] = activation_gradient(kind, dy.x[j], x.of[1].x[j]);
            pack_store(a.du, a.type, i, dy);
        });
}

template <enum activation_kind kind>
static void run_backward(struct device_queue *q, const char *what,
                         const struct activation_backward *a)
{
    pack_select(a->in_type, pack_is_aligned(a->du, a->dy, a->u), [=](auto in, auto n) {
        launch_elements(q, what, pack_count(a->n, n.value),
                        activation_backward_kernel<kind, in.value, n.value>, *a);
    });
}

void cuda_run_activation_backward(struct device_queue *q, const struct activation_backward *a)
{
    if (a->kind == ACTIVATION_GELU_TANH)
        run_backward<ACTIVATION_GELU_TANH>(q, "the gradient of GELU", a);
    else if (a->kind == ACTIVATION_GELU_ERF)
        run_backward<ACTIVATION_GELU_ERF>(q, "the gradient of GELU", a);
    else
        run_backward<ACTIVATION_RELU>(q, "the gradient of ReLU", a);
}
