/* kernels/cuda/gated.cu - see kernels/gated.h. */
#include "kernels/cpu/gated_body.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

/* Whether every row begins at the beginning of a pack. */
template <typename A, typename... P> static bool has_packed_rows(const A *a, P *...p)
{
    const int width = pack_most(a->in_type);

    return a->cols % width == 0 && a->ld % width == 0 && pack_is_aligned(a->gate, a->up, p...);
}

/* ---- forward ---- */

template <enum gated_kind kind, enum dtype in, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gated_forward_kernel(const __grid_constant__ struct gated_forward a)
{
    const int64_t rows = a.count ? *a.count : a.rows;

    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x)
        pack_each<N, 2>(
            pack_of_block(), 0, a.cols,
            [&](auto n, int64_t c) {
                return pack_set<n.value, 2>{ { pack_load<n.value>(a.gate, in, r * a.ld + c),
                                               pack_load<n.value>(a.up, in, r * a.ld + c) } };
            },
            [&](auto n, int64_t c, auto x) {
                struct pack<n.value> &gate = x.of[0];

#pragma unroll
                for (int j = 0; j < n.value; j++)
                    gate.x[j] = gate.x[j] * gated_share(kind, gate.x[j]) * x.of[1].x[j];
                pack_store(a.y, a.type, r * a.cols + c, gate);
            });
}

template <enum gated_kind kind>
static void run_forward(struct device_queue *q, const char *what, const struct gated_forward *a)
{
    pack_select(a->in_type, has_packed_rows(a, a->y), [=](auto in, auto n) {
        launch_rows(q, what, a->rows, gated_forward_kernel<kind, in.value, n.value>, *a);
    });
}

void cuda_run_gated_forward(struct device_queue *q, const struct gated_forward *a)
{
    if (a->kind == GATED_SWIGLU)
        run_forward<GATED_SWIGLU>(q, "SwiGLU", a);
    else
        run_forward<GATED_GEGLU>(q, "GeGLU", a);
}

/* ---- backward; dgate and dup may be gate and up: a thread reads its elements before it writes
 * them ---- */

/* y = g s(g) u, so dy/du = g s and dy/dg = u f'(g). From dy, gate and up to dgate and dup, in the
 * places of the last two. */
template <enum gated_kind kind, int N>
static __device__ inline void gradients_of(struct pack_set<N, 3> &x)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        float dy = x.of[0].x[j], gate = x.of[1].x[j], up = x.of[2].x[j];
        float s = gated_share(kind, gate);

        x.of[1].x[j] = dy * up * gated_slope(kind, gate, s);
        x.of[2].x[j] = dy * (gate * s);
    }
}

template <enum gated_kind kind, enum dtype in, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gated_backward_kernel(const __grid_constant__ struct gated_backward a)
{
    const int64_t rows = a.count ? *a.count : a.rows;

    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x)
        pack_each<N, 1>(
            pack_of_block(), 0, a.cols,
            [&](auto n, int64_t c) {
                return pack_set<n.value, 3>{ { pack_load<n.value>(a.dy, in, r * a.cols + c),
                                               pack_load<n.value>(a.gate, in, r * a.ld + c),
                                               pack_load<n.value>(a.up, in, r * a.ld + c) } };
            },
            [&](auto, int64_t c, auto x) {
                gradients_of<kind>(x);
                pack_store(a.dgate, a.type, r * a.ld + c, x.of[1]);
                pack_store(a.dup, a.type, r * a.ld + c, x.of[2]);
            });
}

template <enum gated_kind kind>
static void run_backward(struct device_queue *q, const char *what, const struct gated_backward *a)
{
    pack_select(a->in_type, has_packed_rows(a, a->dgate, a->dup, a->dy), [=](auto in, auto n) {
        launch_rows(q, what, a->rows, gated_backward_kernel<kind, in.value, n.value>, *a);
    });
}

void cuda_run_gated_backward(struct device_queue *q, const struct gated_backward *a)
{
    if (a->kind == GATED_SWIGLU)
        run_backward<GATED_SWIGLU>(q, "the gradient of SwiGLU", a);
    else
        run_backward<GATED_GEGLU>(q, "the gradient of GeGLU", a);
}
