/* kernels/cuda/head_norm.cu - see kernels/head_norm.h. Some lanes of a warp share a head: the
 * smallest power of two that has all its packs, so that narrow heads leave none idle. With 16 bytes
 * for each lane a head of bf16 has at most 256 columns, and the second pass finds in the first
 * cache what the first one loaded. */
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"

/* Lanes for a head in packs of N columns. */
template <int N> static __host__ __device__ inline int lanes_of(int64_t head_dim)
{
    int lanes = 32;

    while (lanes > 1 && lanes / 2 * N >= head_dim)
        lanes /= 2;
    return lanes;
}

/* Where head i of all rows' heads begins. 2^32 heads do not fit into a GPU's memory, and a division
 * in 64 bits is a call that spills registers. */
static __device__ inline int64_t head_at(int64_t i, int64_t heads, int64_t head_dim, int64_t ld)
{
    const uint32_t n = (uint32_t)heads, row = (uint32_t)i / n, head = (uint32_t)i % n;

    return row * ld + head * head_dim;
}

/* The sum over the lanes that share a head. All lanes of the warp call it. */
static __device__ inline float sum_of(float x, int lanes)
{
    for (int d = lanes / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* run(i, in, lane, lanes) for each of n heads: number i, of which this is a lane. All lanes of a
 * warp run together; where `in` is false they have no head. */
template <int N, typename F>
static __device__ inline void for_heads(int64_t n, int64_t head_dim, F run)
{
    const int lanes = lanes_of<N>(head_dim), of_warp = 32 / lanes;
    const int lane = launch_lane() % lanes, own = launch_lane() / lanes;

    for (int64_t first = launch_warp() * of_warp; first < n; first += launch_warps() * of_warp) {
        const int64_t i = first + own;

        run(i < n ? i : n - 1, i < n, lane, lanes);
    }
}

template <typename F, typename A>
static void launch_heads(struct device_queue *q, const char *what, int lanes, F kernel, const A &a)
{
    const int64_t of_warp = 32 / lanes;

    launch_warp_rows(q, what, (a.rows * a.heads + of_warp - 1) / of_warp, kernel, a);
}

/* What a lane adds to the sum of squares of a head that begins at `from`, and to that of d w x. */
template <enum dtype type, int N, typename A>
static __device__ inline float squares_of(const A &a, int64_t from, bool in, int lane, int lanes)
{
    float sum = 0;

    for (int64_t c = lane * N; in && c < a.head_dim; c += lanes * N) {
        const struct pack<N> x = pack_load<N>(a.x, type, from + c);

#pragma unroll
        for (int j = 0; j < N; j++)
            sum += x.x[j] * x.x[j];
    }
    return sum;
}

template <enum dtype type, int N, typename A>
static __device__ inline float dot_of(const A &a, int64_t from, int64_t at, bool in, int lane,
                                      int lanes)
{
    float dot = 0;

    for (int64_t c = lane * N; in && c < a.head_dim; c += lanes * N) {
        const struct pack<N> x = pack_load<N>(a.x, type, from + c);
        const struct pack<N> dy = pack_load<N>(a.d, type, at + c), w = pack_load<N>(a.w, c);

#pragma unroll
        for (int j = 0; j < N; j++)
            dot += dy.x[j] * w.x[j] * x.x[j];
    }
    return dot;
}

/* ---- forward ---- */

template <enum dtype type, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    head_norm_forward_kernel(const __grid_constant__ struct head_norm_forward a)
{
    for_heads<N>(a.rows * a.heads, a.head_dim, [&](int64_t i, bool in, int lane, int lanes) {
        const int64_t from = head_at(i, a.heads, a.head_dim, a.ldx);
        const int64_t to = head_at(i, a.heads, a.head_dim, a.ldy);
        const float mean = a.sums ? a.sums[i] / a.columns
                                  : sum_of(squares_of<type, N>(a, from, in, lane, lanes), lanes) /
                                        (float)a.head_dim;
        const float by = 1.0f / sqrtf(mean + a.eps);

        for (int64_t c = lane * N; in && c < a.head_dim; c += lanes * N) {
            struct pack<N> x = pack_load<N>(a.x, type, from + c);
            const struct pack<N> w = pack_load<N>(a.w, c);

#pragma unroll
            for (int j = 0; j < N; j++)
                x.x[j] = x.x[j] * by * w.x[j];
            pack_store(a.y, type, to + c, x);
        }
        if (in && lane == 0)
            a.rstd[i] = by;
    });
}

static bool is_packed(enum dtype type, int64_t head_dim, int64_t ld, int64_t other_ld)
{
    const int width = pack_most(type);

    return head_dim % width == 0 && ld % width == 0 && other_ld % width == 0;
}

void cuda_run_head_norm_forward(struct device_queue *q, const struct head_norm_forward *a)
{
    const bool packs =
        is_packed(a->type, a->head_dim, a->ldy, a->ldx) && pack_is_aligned(a->y, a->x, a->w);

    pack_select(a->type, packs, [=](auto type, auto n) {
        launch_heads(q, "a norm of heads", lanes_of<n.value>(a->head_dim),
                     head_norm_forward_kernel<type.value, n.value>, *a);
    });
}

/* ---- backward: with n = x rstd: dx = rstd (dy w - n mean(dy w n)) ---- */

/* A whole head has a kernel of its own, because the choice would cost it registers. */
template <enum dtype type, int N, bool is_cut>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    head_norm_dx_kernel(const __grid_constant__ struct head_norm_backward a)
{
    for_heads<N>(a.rows * a.heads, a.head_dim, [&](int64_t i, bool in, int lane, int lanes) {
        const int64_t from = head_at(i, a.heads, a.head_dim, a.ldx);
        const int64_t at = head_at(i, a.heads, a.head_dim, a.ldd);
        const float rstd = a.rstd[i];
        const float dot =
            is_cut ? a.sums[i] : sum_of(dot_of<type, N>(a, from, at, in, lane, lanes), lanes);
        const float along = dot * rstd * rstd * rstd / (is_cut ? a.columns : (float)a.head_dim);

        for (int64_t c = lane * N; in && c < a.head_dim; c += lanes * N) {
            const struct pack<N> x = pack_load<N>(a.x, type, from + c), w = pack_load<N>(a.w, c);
            struct pack<N> d = pack_load<N>(a.d, type, at + c);

#pragma unroll
            for (int j = 0; j < N; j++)
                d.x[j] = rstd * (d.x[j] * w.x[j]) - along * x.x[j];
            pack_store(a.d, type, at + c, d);
        }
    });
}

/* dw += dy n, or a sum for each block of rows. */
template <enum dtype type, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    head_norm_dw_kernel(const __grid_constant__ struct head_norm_backward a, float *parts)
{
    const int64_t n = a.rows * a.heads / gridDim.y, first = n * blockIdx.y;
    float sums[1];

    reduce_columns<N>(sums, n, a.head_dim, [&](int64_t k, int64_t c) {
        const int64_t i = first + k;
        const float rstd = a.rstd[i];
        struct pack<N> dy = pack_load<N>(a.d, type, head_at(i, a.heads, a.head_dim, a.ldd) + c);
        const struct pack<N> x =
            pack_load<N>(a.x, type, head_at(i, a.heads, a.head_dim, a.ldx) + c);

#pragma unroll
        for (int j = 0; j < N; j++)
            dy.x[j] *= x.x[j] * rstd;
        return pack_set<N, 1>{ { dy } };
    });
    reduce_store<N>(a.dw + a.block_step * blockIdx.y, parts, a.head_dim, a.blocks, sums[0]);
}

/* dw first, because dx takes the place of dy. Its packs are such that a head of 128 columns has all
 * lanes. */
template <enum dtype type, int N>
static void run_backward(struct device_queue *q, const struct head_norm_backward *a,
                         const struct reduce_plan *p)
{
    static const char what[] = "the gradient of a norm of heads";
    constexpr int width = N > 1 ? PACK : 1;

    launch(q, what, reduce_plan_grid(p, width), head_norm_dw_kernel<type, width>, *a,
           reduce_plan_parts(p, 0));
    reduce_plan_add(q, p, 0, a->dw, a->block_step, a->blocks > 0);
    launch_heads(q, what, lanes_of<N>(a->head_dim),
                 a->sums ? head_norm_dx_kernel<type, N, true> : head_norm_dx_kernel<type, N, false>,
                 *a);
}

void cuda_run_head_norm_backward(struct device_queue *q, const struct head_norm_backward *a)
{
    const int blocks = a->blocks > 0 ? a->blocks : 1;
    const bool packs =
        is_packed(a->type, a->head_dim, a->ldd, a->ldx) && pack_is_aligned(a->d, a->x, a->w);
    struct reduce_plan p;

    if (reduce_plan_make(&p, q, a->rows * a->heads / blocks, a->head_dim, blocks, 1))
        pack_select(a->type, packs,
                    [=](auto type, auto n) { run_backward<type.value, n.value>(q, a, &p); });
}

/* ---- sums of heads whose columns are cut ---- */

template <enum dtype type, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    head_norm_sums_kernel(const __grid_constant__ struct head_norm_sums a)
{
    for_heads<N>(a.rows * a.heads, a.head_dim, [&](int64_t i, bool in, int lane, int lanes) {
        const int64_t from = head_at(i, a.heads, a.head_dim, a.ldx);
        const float part =
            a.d ? dot_of<type, N>(a, from, head_at(i, a.heads, a.head_dim, a.ldd), in, lane, lanes)
                : squares_of<type, N>(a, from, in, lane, lanes);
        const float sum = sum_of(part, lanes);

        if (in && lane == 0)
            a.out[i] = sum;
    });
}

void cuda_run_head_norm_sums(struct device_queue *q, const struct head_norm_sums *a)
{
    const bool packs = is_packed(a->type, a->head_dim, a->d ? a->ldd : a->ldx, a->ldx) &&
                       pack_is_aligned(a->x, a->d, a->w);

    pack_select(a->type, packs, [=](auto type, auto n) {
        launch_heads(q, "the sum of a norm of heads", lanes_of<n.value>(a->head_dim),
                     head_norm_sums_kernel<type.value, n.value>, *a);
    });
}
