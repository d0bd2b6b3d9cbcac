/* kernels/cuda/rms_norm.cu - see kernels/rms_norm.h. */
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/run.h"

/* ---- forward ---- */

static __device__ inline bool is_sum_stored(const struct rms_norm_forward &a)
{
    return a.x && (a.residual || a.block);
}

static __device__ inline float rstd_of(const struct rms_norm_forward &a, double sum)
{
    return (float)(1.0 / sqrt(sum / (double)a.cols + (double)a.eps));
}

/* A row in registers. */
template <int workers, int packs>
__global__ void __launch_bounds__(LAUNCH_THREADS, row_blocks(packs))
    rms_norm_forward_row_kernel(const __grid_constant__ struct rms_norm_forward a)
{
    const int64_t r = row_first<workers>(), at = r * a.cols;
    const bool is_first = workers == 32 ? launch_lane() == 0 : threadIdx.x == 0;
    struct row_packs<packs> x, w;

    if (r >= a.rows)
        return;
    row_load_sum<workers>(x, a.block, a.x, a.residual, at, a.cols);
    if (is_sum_stored(a))
        row_store<workers>(a.x + at, x, a.cols);
    const float by = rstd_of(a, row_sum<workers, packs>(a.cols, [&](int k, int j) {
                                 return x.of[k].x[j] * x.of[k].x[j];
                             }));
    row_each<workers, packs>(a.cols, [&](int k, int) {
#pragma unroll
        for (int j = 0; j < PACK; j++)
            x.of[k].x[j] *= by;
    });
    row_load<workers>(w, a.w, a.cols);
    row_multiply<workers, packs, 0, packs>(x, w, a.cols);
    row_each<workers, packs>(a.cols,
                             [&](int k, int c) { pack_store(a.y, a.type, at + c, x.of[k]); });
    if (is_first)
        a.rstd[r] = by;
}

/* A block for each row; a thread always has the same columns. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    rms_norm_forward_kernel(const __grid_constant__ struct rms_norm_forward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const int64_t at = r * a.cols;
        double sum = 0;

        pack_each<N, 1>(
            pack_of_block(), 0, a.cols,
            [&](auto n, int64_t c) {
                return a.block ? pack_load<n.value>(a.block, at + c)
                               : pack_load<n.value>(a.x, at + c);
            },
            [&](auto n, int64_t c, auto x) {
                if (a.residual)
                    pack_add(x, pack_load<n.value>(a.residual, at + c));
                if (is_sum_stored(a))
                    pack_store(a.x, at + c, x);
                for (float element : x.x)
                    sum += (double)(element * element);
            });
        const float by = rstd_of(a, reduce_block(sum, reduce_sum()));
        if (threadIdx.x == 0)
            a.rstd[r] = by;
        pack_each<N, 2>(
            pack_of_block(), 0, a.cols,
            [&](auto n, int64_t c) {
                return pack_set<n.value, 2>{ { a.x ? pack_load<n.value>(a.x, at + c)
                                                   : pack_load<n.value>(a.block, at + c),
                                               pack_load<n.value>(a.w, c) } };
            },
            [&](auto n, int64_t c, auto x) {
#pragma unroll
                for (int j = 0; j < n.value; j++)
                    x.of[0].x[j] = x.of[0].x[j] * by * x.of[1].x[j];
                pack_store(a.y, a.type, at + c, x.of[0]);
            });
    }
}

static const struct row_kernels<void (*)(struct rms_norm_forward)> FORWARD = {
    { rms_norm_forward_row_kernel<32, 4>, rms_norm_forward_row_kernel<32, 6>,
      rms_norm_forward_row_kernel<32, ROW_PACKS> },
    {
        rms_norm_forward_row_kernel<LAUNCH_THREADS, 2>,
            rms_norm_forward_row_kernel<LAUNCH_THREADS, 4>,
            rms_norm_forward_row_kernel<LAUNCH_THREADS, ROW_PACKS>
    }
};

void cuda_run_rms_norm_forward(struct device_queue *q, const struct rms_norm_forward *a)
{
    const bool is_packed =
        a->cols % PACK == 0 && pack_is_aligned(a->y, a->x, a->residual, a->w, a->block);

    row_launch(q, "RMS norm", is_packed, FORWARD, rms_norm_forward_kernel<PACK>,
               rms_norm_forward_kernel<1>, *a);
}

/* ---- backward: with n = x rstd: dx += rstd (dy w - n mean(dy w n)) ---- */

/* `along` in dx += rstd dy w - along x. */
static __device__ inline float along_of(const struct rms_norm_backward &a, double dot, float rstd)
{
    const double s = (double)rstd;

    return (float)(dot * s * s * s / (double)a.cols);
}

/* x and dy of row r. */
template <int workers, int packs>
static __device__ inline void load_row(const struct rms_norm_backward &a, int64_t r,
                                       struct row_packs<packs> &x, struct row_packs<packs> &dy)
{
    row_load<workers>(x, a.x, a.x_type, r * a.cols, a.cols);
    row_load<workers>(dy, a.dy, a.dy_type, r * a.cols, a.cols);
}

/* dx of row r, from x, from dy in g, and from what dx was. */
template <int workers, int packs>
static __device__ inline void add_dx(const struct rms_norm_backward &a, int64_t r,
                                     const struct row_packs<packs> &x, struct row_packs<packs> &g,
                                     const struct row_before<packs> &dx)
{
    const int64_t at = r * a.cols;
    const float rstd = a.rstd[r];

    row_multiply<workers>(g, a.w, a.cols);
    const float along = along_of(
        a,
        row_sum<workers, packs>(a.cols, [&](int k, int j) { return g.of[k].x[j] * x.of[k].x[j]; }),
        rstd);
    row_each<workers, packs>(a.cols, [&](int k, int) {
#pragma unroll
        for (int j = 0; j < PACK; j++)
            g.of[k].x[j] = rstd * g.of[k].x[j] - along * x.of[k].x[j];
    });
    row_add_before<workers>(g, dx, a.dx + at, a.cols);
    row_store<workers>(a.dx + at, g, a.cols);
    if (a.rounded)
        row_store<workers>(a.rounded + at, g, a.cols);
}

/* Rows in registers, one for each warp, and the sum dw += dy n of each block. */
template <int packs>
__global__ void __launch_bounds__(LAUNCH_THREADS, ROW_WARP_BLOCKS)
    rms_norm_backward_warp_kernel(const __grid_constant__ struct rms_norm_backward a, float *parts)
{
    const int warp = (int)(threadIdx.x / 32);
    float total[packs] = {};

    for (int64_t first = (int64_t)blockIdx.x * LAUNCH_WARPS; first < a.rows;
         first += launch_warps()) {
        const int n_rows = a.rows - first < LAUNCH_WARPS ? (int)(a.rows - first) : LAUNCH_WARPS;
        const float rstd = warp < n_rows ? a.rstd[first + warp] : 0;
        struct row_packs<packs> x, dy;
        struct row_before<packs> dx;

        if (warp < n_rows) {
            row_load_before<32>(dx, a.dx + (first + warp) * a.cols, a.cols);
            load_row<32>(a, first + warp, x, dy);
        }
        row_add_columns<1>(total, a.cols, n_rows, [&](int, int k) {
            struct pack<PACK> n = x.of[k];

#pragma unroll
            for (int j = 0; j < PACK; j++)
                n.x[j] *= rstd * dy.of[k].x[j];
            return n;
        });
        if (warp < n_rows)
            add_dx<32>(a, first + warp, x, dy, dx);
    }
    row_store_columns<1>(parts, total, a.cols);
}

/* The same with a row for each block, whose threads always have the same columns. */
template <int packs>
__global__ void __launch_bounds__(LAUNCH_THREADS, row_sum_blocks(packs))
    rms_norm_backward_block_kernel(const __grid_constant__ struct rms_norm_backward a, float *parts)
{
    struct row_packs<packs> dw = {
    };

    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const float rstd = a.rstd[r];
        struct row_packs<packs> x, dy;
        struct row_before<packs> dx;

        row_load_before<LAUNCH_THREADS>(dx, a.dx + r * a.cols, a.cols);
        load_row<LAUNCH_THREADS>(a, r, x, dy);
        row_each<LAUNCH_THREADS, packs>(a.cols, [&](int k, int) {
#pragma unroll
            for (int j = 0; j < PACK; j++)
                dw.of[k].x[j] += dy.of[k].x[j] * (x.of[k].x[j] * rstd);
        });
        add_dx<LAUNCH_THREADS>(a, r, x, dy, dx);
    }
    row_store<LAUNCH_THREADS>(parts + (int64_t)blockIdx.x * a.cols, dw, a.cols);
}

/* Rows that are too long, or not aligned. Four blocks on a processor: else the compiler takes fewer
 * registers, and spills. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS, 4)
    rms_norm_dx_kernel(const __grid_constant__ struct rms_norm_backward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const int64_t at = r * a.cols;
        const float rstd = a.rstd[r];
        const auto load = [&](auto n, int64_t c) {
            pack_set<n.value, 2> of = { { pack_load<n.value>(a.dy, a.dy_type, at + c),
                                          pack_load<n.value>(a.x, a.x_type, at + c) } };
            const auto w = pack_load<n.value>(a.w, c);

#pragma unroll
            for (int j = 0; j < n.value; j++)
                of.of[0].x[j] *= w.x[j];
            return of;
        };
        double dot = 0;

        pack_each<N, 2>(pack_of_block(), 0, a.cols, load, [&](auto n, int64_t, auto x) {
#pragma unroll
            for (int j = 0; j < n.value; j++)
                dot += (double)(x.of[0].x[j] * x.of[1].x[j]);
        });
        const float along = along_of(a, reduce_block(dot, reduce_sum()), rstd);
        pack_each<N, 1>(pack_of_block(), 0, a.cols, load, [&](auto n, int64_t c, auto x) {
            auto dx = pack_load<n.value>(a.dx + at, c);

#pragma unroll
            for (int j = 0; j < n.value; j++)
                dx.x[j] += rstd * x.of[0].x[j] - along * x.of[1].x[j];
            pack_store(a.dx + at, c, dx);
            if (a.rounded)
                pack_store(a.rounded + at, c, dx);
        });
    }
}

/* dw += dy n, or a sum for each block of rows. */
template <int N, enum dtype dy_type, enum dtype x_type>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    rms_norm_dw_kernel(const __grid_constant__ struct rms_norm_backward a, float *parts)
{
    const int64_t rows = a.rows / gridDim.y, first = rows * blockIdx.y;
    float sums[1];

    reduce_columns<N>(sums, rows, a.cols, [&](int64_t row, int64_t col) {
        const int64_t at = (first + row) * a.cols + col;
        const float rstd = a.rstd[first + row];
        struct pack<N> dy = pack_load<N>(a.dy, dy_type, at);
        const struct pack<N> x = pack_load<N>(a.x, x_type, at);

#pragma unroll
        for (int j = 0; j < N; j++)
            dy.x[j] *= x.x[j] * rstd;
        return pack_set<N, 1>{ { dy } };
    });
    reduce_store<N>(a.dw + a.block_step * blockIdx.y, parts, a.cols, a.blocks, sums[0]);
}

using dw_kernel = void (*)(struct rms_norm_backward, float *);

/* At most one of both types is bf16: dy where x is the residual, x where it is what a block
 * computed. */
template <int N> static dw_kernel dw_kernel_of(const struct rms_norm_backward *a)
{
    return a->dy_type == DTYPE_BF16  ? rms_norm_dw_kernel<N, DTYPE_BF16, DTYPE_F32>
           : a->x_type == DTYPE_BF16 ? rms_norm_dw_kernel<N, DTYPE_F32, DTYPE_BF16>
                                     : rms_norm_dw_kernel<N, DTYPE_F32, DTYPE_F32>;
}

/* dx, then dw in a kernel of its own. */
static void run_apart(struct device_queue *q, const struct rms_norm_backward *a, bool is_packed)
{
    const int blocks = a->blocks > 0 ? a->blocks : 1;
    struct reduce_plan p;

    launch_rows(q, "the gradient of RMS norm", a->rows,
                is_packed ? rms_norm_dx_kernel<PACK> : rms_norm_dx_kernel<1>, *a);
    if (!reduce_plan_make(&p, q, a->rows / blocks, a->cols, blocks, 1))
        return;
    launch(q, "the gradient of RMS norm", reduce_plan_grid(&p, is_packed ? PACK : 1),
           is_packed ? dw_kernel_of<PACK>(a) : dw_kernel_of<1>(a), *a, reduce_plan_parts(&p, 0));
    reduce_plan_add(q, &p, 0, a->dw, a->block_step, a->blocks > 0);
}

static const struct row_kernels<void (*)(struct rms_norm_backward, float *)> BACKWARD = {
    { rms_norm_backward_warp_kernel<4>, rms_norm_backward_warp_kernel<6>,
      rms_norm_backward_warp_kernel<ROW_PACKS> },
    {
        rms_norm_backward_block_kernel<2>, rms_norm_backward_block_kernel<4>,
            rms_norm_backward_block_kernel<ROW_PACKS>
    }
};

void cuda_run_rms_norm_backward(struct device_queue *q, const struct rms_norm_backward *a)
{
    const bool is_packed =
        a->cols % PACK == 0 && pack_is_aligned(a->dx, a->dy, a->x, a->w, a->rounded);

    if (is_packed && a->cols <= ROW_MAX && a->blocks == 0)
        row_launch_sums(q, "the gradient of RMS norm", BACKWARD, *a, { { a->dw } });
    else
        run_apart(q, a, is_packed);
}
