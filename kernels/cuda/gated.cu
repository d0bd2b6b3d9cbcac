/* kernels/cuda/gated.cu - see kernels/gated.h. */
#include "kernels/cpu/gated_body.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

/* Whether all is bf16 and rows are whole packs. */
template <typename A> static bool has_packed_rows(const A *a)
{
    return a->in_type == DTYPE_BF16 && a->type == DTYPE_BF16 && a->cols % LAUNCH_PACK == 0 &&
           a->ld % LAUNCH_PACK == 0 && launch_is_packed(a->gate, a->up);
}

/* ---- forward ---- */

template <enum gated_kind kind> static __device__ inline float product(float gate, float up)
{
    return gate * gated_share(kind, gate) * up;
}

template <enum gated_kind kind, bool is_bf16>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gated_forward_kernel(const __grid_constant__ struct gated_forward a)
{
    constexpr enum dtype in_type = is_bf16 ? DTYPE_BF16 : DTYPE_F32;
    const int64_t rows = a.count ? *a.count : a.rows;

    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x)
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            float gate = launch_load(a.gate, in_type, r * a.ld + c);
            float up = launch_load(a.up, in_type, r * a.ld + c);

            launch_store(a.y, a.type, r * a.cols + c, product<kind>(gate, up));
        }
}

/* All in bf16, rows of a.cols / LAUNCH_PACK packs. */
template <enum gated_kind kind>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gated_forward_pack_kernel(const __grid_constant__ struct gated_forward a)
{
    const int64_t rows = a.count ? *a.count : a.rows;
    const int64_t packs = a.cols / LAUNCH_PACK, ld = a.ld / LAUNCH_PACK;

    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x)
        for (int64_t c = threadIdx.x; c < packs; c += LAUNCH_THREADS) {
            struct launch_pack gate = launch_load_pack(a.gate, r * ld + c);
            struct launch_pack up = launch_load_pack(a.up, r * ld + c);

#pragma unroll
            for (int j = 0; j < LAUNCH_PACK; j++)
                up.x[j] =
                    vec_to_bf16(product<kind>(vec_from_bf16(gate.x[j]), vec_from_bf16(up.x[j])));
            launch_store_pack(a.y, r * packs + c, up);
        }
}

template <enum gated_kind kind>
static void run_forward(struct device_queue *q, const char *what, const struct gated_forward *a)
{
    if (has_packed_rows(a) && launch_is_packed(a->y))
        launch_rows(q, what, a->rows, gated_forward_pack_kernel<kind>, *a);
    else if (a->in_type == DTYPE_BF16)
        launch_rows(q, what, a->rows, gated_forward_kernel<kind, true>, *a);
    else
        launch_rows(q, what, a->rows, gated_forward_kernel<kind, false>, *a);
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

struct gated_gradients {
    float gate, up;
};

/* y = g s(g) u, so dy/du = g s and dy/dg = u f'(g). */
template <enum gated_kind kind>
static __device__ inline struct gated_gradients gradients_of(float dy, float g, float up)
{
    float s = gated_share(kind, g);

    return { dy * up * gated_slope(kind, g, s), dy * (g * s) };
}

template <enum gated_kind kind, bool is_bf16>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gated_backward_kernel(const __grid_constant__ struct gated_backward a)
{
    constexpr enum dtype in_type = is_bf16 ? DTYPE_BF16 : DTYPE_F32;
    const int64_t rows = a.count ? *a.count : a.rows;

    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x)
        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS) {
            int64_t at = r * a.ld + c;
            struct gated_gradients d = gradients_of<kind>(
                launch_load(a.dy, in_type, r * a.cols + c), launch_load(a.gate, in_type, at),
                launch_load(a.up, in_type, at));

            launch_store(a.dgate, a.type, at, d.gate);
            launch_store(a.dup, a.type, at, d.up);
        }
}

template <enum gated_kind kind>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    gated_backward_pack_kernel(const __grid_constant__ struct gated_backward a)
{
    const int64_t rows = a.count ? *a.count : a.rows;
    const int64_t packs = a.cols / LAUNCH_PACK, ld = a.ld / LAUNCH_PACK;

    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x)
        for (int64_t c = threadIdx.x; c < packs; c += LAUNCH_THREADS) {
            int64_t at = r * ld + c;
            struct launch_pack dy = launch_load_pack(a.dy, r * packs + c);
            struct launch_pack gate = launch_load_pack(a.gate, at);
            struct launch_pack up = launch_load_pack(a.up, at);

#pragma unroll
            for (int j = 0; j < LAUNCH_PACK; j++) {
                struct gated_gradients d = gradients_of<kind>(
                    vec_from_bf16(dy.x[j]), vec_from_bf16(gate.x[j]), vec_from_bf16(up.x[j]));

                gate.x[j] = vec_to_bf16(d.gate);
                up.x[j] = vec_to_bf16(d.up);
            }
            launch_store_pack(a.dgate, at, gate);
            launch_store_pack(a.dup, at, up);
        }
}

template <enum gated_kind kind>
static void run_backward(struct device_queue *q, const char *what, const struct gated_backward *a)
{
    if (has_packed_rows(a) && launch_is_packed(a->dgate, a->dup, a->dy))
        launch_rows(q, what, a->rows, gated_backward_pack_kernel<kind>, *a);
    else if (a->in_type == DTYPE_BF16)
        launch_rows(q, what, a->rows, gated_backward_kernel<kind, true>, *a);
    else
        launch_rows(q, what, a->rows, gated_backward_kernel<kind, false>, *a);
}

void cuda_run_gated_backward(struct device_queue *q, const struct gated_backward *a)
{
    if (a->kind == GATED_SWIGLU)
        run_backward<GATED_SWIGLU>(q, "the gradient of SwiGLU", a);
    else
        run_backward<GATED_GEGLU>(q, "the gradient of GeGLU", a);
}
