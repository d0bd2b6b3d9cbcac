/* kernels/cuda/layer_norm.cu - see kernels/layer_norm.h. */
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/run.h"

/* ---- forward ---- */

static __device__ inline float rstd_of(const struct layer_norm_forward &a, double sum)
{
    return (float)(1.0 / sqrt(sum / (double)a.cols + (double)a.eps));
}

static __device__ inline float normed(float x, float mean, float rstd, float w, float b)
{
    return (x - mean) * rstd * w + b;
}

/* A row in registers. */
template <int workers, int packs>
__global__ void __launch_bounds__(LAUNCH_THREADS, row_blocks(packs))
    layer_norm_forward_row_kernel(const __grid_constant__ struct layer_norm_forward a)
{
    const int64_t r = row_first<workers>(), at = r * a.cols;
    struct row_packs<packs> x, w;

    if (r >= a.rows)
        return;
    row_load_sum<workers>(x, a.block, a.x, a.residual, at, a.cols);
    if (a.x_bias)
        row_add<workers>(x, a.x_bias, a.cols);
    if (a.residual || a.x_bias || a.block)
        row_store<workers>(a.x + at, x, a.cols);
    const float mean =
        (float)(row_sum<workers, packs>(a.cols, [&](int k, int j) { return x.of[k].x[j]; }) /
                (double)a.cols);
    const float rstd = rstd_of(a, row_sum<workers, packs>(a.cols, [&](int k, int j) {
                                   const float away = x.of[k].x[j] - mean;

                                   return away * away;
                               }));
    row_each<workers, packs>(a.cols, [&](int k, int) {
#pragma unroll
        for (int j = 0; j < PACK; j++)
            x.of[k].x[j] = (x.of[k].x[j] - mean) * rstd;
    });
    row_load<workers>(w, a.w, a.cols);
    row_multiply<workers, packs, 0, packs>(x, w, a.cols);
    row_load<workers>(w, a.b, a.cols);
    row_add<workers>(x, w, a.cols);
    row_each<workers, packs>(a.cols,
                             [&](int k, int c) { pack_store(a.y, a.type, at + c, x.of[k]); });
    if (workers == 32 ? launch_lane() == 0 : threadIdx.x == 0) {
        a.mean[r] = mean;
        a.rstd[r] = rstd;
    }
}

/* A block for each row; a thread always has the same columns. Four blocks on a processor: else
 * sm_100's compiler takes fewer registers, and spills. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS, 4)
    layer_norm_forward_kernel(const __grid_constant__ struct layer_norm_forward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        float *of_row = a.x + r * a.cols;
        const auto load = [&](auto n, int64_t c) { return pack_load<n.value>(of_row, c); };
        double sum = 0;

        const auto load_sum = [&](auto n, int64_t c) {
            return a.block ? pack_load<n.value>(a.block + r * a.cols, c) : load(n, c);
        };

        pack_each<N, 1>(pack_of_block(), 0, a.cols, load_sum, [&](auto n, int64_t c, auto x) {
            if (a.residual)
                pack_add(x, pack_load<n.value>(a.residual + r * a.cols, c));
            if (a.x_bias)
                pack_add(x, pack_load<n.value>(a.x_bias, c));
            if (a.residual || a.x_bias || a.block)
                pack_store(of_row, c, x);
            for (float element : x.x)
                sum += (double)element;
        });
        const float mean = (float)(reduce_block(sum, reduce_sum()) / (double)a.cols);
        sum = 0;
        pack_each<N, 2>(pack_of_block(), 0, a.cols, load, [&](auto, int64_t, auto x) {
            for (float element : x.x)
                sum += (double)((element - mean) * (element - mean));
        });
        const float rstd = rstd_of(a, reduce_block(sum, reduce_sum()));
        if (threadIdx.x == 0) {
            a.mean[r] = mean;
            a.rstd[r] = rstd;
        }
        pack_each<N, 2>(pack_of_block(), 0, a.cols, load, [&](auto n, int64_t c, auto x) {
            const auto w = pack_load<n.value>(a.w, c), b = pack_load<n.value>(a.b, c);

#pragma unroll
            for (int j = 0; j < n.value; j++)
                x.x[j] = normed(x.x[j], mean, rstd, w.x[j], b.x[j]);
            pack_store(a.y, a.type, r * a.cols + c, x);
        });
    }
}

static const struct row_kernels<void (*)(struct layer_norm_forward)> FORWARD = {
    { layer_norm_forward_row_kernel<32, 4>, layer_norm_forward_row_kernel<32, 6>,
      layer_norm_forward_row_kernel<32, ROW_PACKS> },
    {
        layer_norm_forward_row_kernel<LAUNCH_THREADS, 2>,
            layer_norm_forward_row_kernel<LAUNCH_THREADS, 4>,
            layer_norm_forward_row_kernel<LAUNCH_THREADS, ROW_PACKS>
    }
};

void cuda_run_layer_norm_forward(struct device_queue *q, const struct layer_norm_forward *a)
{
    const bool is_packed = a->cols % PACK == 0 && pack_is_aligned(a->y, a->x, a->residual,
                                                                  a->x_bias, a->w, a->b, a->block);

    row_launch(q, "layer norm", is_packed, FORWARD, layer_norm_forward_kernel<PACK>,
               layer_norm_forward_kernel<1>, *a);
}

/* ---- backward ---- */

/* With n = (x - mean) rstd and g = dy w: dx += rstd (g - mean(g) - n mean(g n)). */

/* n and dy of row r. */
template <int workers, int packs>
static __device__ inline void load_row(const struct layer_norm_backward &a, int64_t r,
                                       struct row_packs<packs> &n, struct row_packs<packs> &dy)
{
    const float mean = a.mean[r], rstd = a.rstd[r];

    row_load<workers>(n, a.x + r * a.cols, a.cols);
    row_load<workers>(dy, a.dy, a.dy_type, r * a.cols, a.cols);
    row_each<workers, packs>(a.cols, [&](int k, int) {
#pragma unroll
        for (int j = 0; j < PACK; j++)
            n.of[k].x[j] = (n.of[k].x[j] - mean) * rstd;
    });
}

/* dx of row r, from n, from dy in g, and from what dx was; it is added to dx_sum too. */
template <int workers, int packs>
static __device__ inline void add_dx(const struct layer_norm_backward &a, int64_t r,
                                     const struct row_packs<packs> &n, struct row_packs<packs> &g,
                                     const struct row_before<packs> &dx,
                                     struct row_shared_sum<packs> &dx_sum)
{
    const int64_t at = r * a.cols;
    const float rstd = a.rstd[r];
    double sums[2];

    row_multiply<workers>(g, a.w, a.cols);
    row_sums<workers, packs>(sums, a.cols, [&](int s, int k, int j) {
        return s ? g.of[k].x[j] * n.of[k].x[j] : g.of[k].x[j];
    });
    const float g_mean = (float)(sums[0] / (double)a.cols);
    const float gn_mean = (float)(sums[1] / (double)a.cols);

    row_each<workers, packs>(a.cols, [&](int k, int) {
#pragma unroll
        for (int j = 0; j < PACK; j++)
            g.of[k].x[j] = rstd * (g.of[k].x[j] - g_mean - n.of[k].x[j] * gn_mean);
    });
    row_add_before<workers>(g, dx, a.dx + at, a.cols);
    row_store<workers>(a.dx + at, g, a.cols);
    if (a.rounded)
        row_store<workers>(a.rounded + at, g, a.cols);
    if (a.dx_sum)
        row_shared_add<workers>(dx_sum, g, a.cols);
}

/* Rows in registers, one for each warp, and the sums dw += dy n, db += dy and dx_sum += dx of each
 * block. */
template <int packs>
__global__ void __launch_bounds__(LAUNCH_THREADS, ROW_WARP_BLOCKS)
    layer_norm_backward_warp_kernel(const __grid_constant__ struct layer_norm_backward a,
                                    float *parts)
{
    const int warp = (int)(threadIdx.x / 32);
    float total[packs] = {};
    __shared__ struct row_shared_sum<packs> dx_sum;

    if (a.dx_sum)
        row_shared_clear(dx_sum);
    for (int64_t first = (int64_t)blockIdx.x * LAUNCH_WARPS; first < a.rows;
         first += launch_warps()) {
        const int n_rows = a.rows - first < LAUNCH_WARPS ? (int)(a.rows - first) : LAUNCH_WARPS;
        struct row_packs<packs> n, dy;
        struct row_before<packs> dx;

        if (warp < n_rows) {
            row_load_before<32>(dx, a.dx + (first + warp) * a.cols, a.cols);
            load_row<32>(a, first + warp, n, dy);
        }
        row_add_columns<2>(total, a.cols, n_rows, [&](int s, int k) {
            struct pack<PACK> x = dy.of[k];

#pragma unroll
            for (int j = 0; j < PACK && s == 0; j++)
                x.x[j] *= n.of[k].x[j];
            return x;
        });
        if (warp < n_rows)
            add_dx<32>(a, first + warp, n, dy, dx, dx_sum);
    }
    row_store_columns<2>(parts, total, a.cols);
    if (a.dx_sum)
        row_shared_store<32>(parts, 2, dx_sum, a.cols);
}

/* The same with a row for each block, whose threads always have the same columns. */
template <int packs>
__global__ void __launch_bounds__(LAUNCH_THREADS, row_sum_blocks(packs))
    layer_norm_backward_block_kernel(const __grid_constant__ struct layer_norm_backward a,
                                     float *parts)
{
    struct row_packs<packs> dw = {}, db = {
    };
    __shared__ struct row_shared_sum<packs> dx_sum;

    if (a.dx_sum)
        row_shared_clear(dx_sum);
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        struct row_packs<packs> n, dy;
        struct row_before<packs> dx;

        row_load_before<LAUNCH_THREADS>(dx, a.dx + r * a.cols, a.cols);
        load_row<LAUNCH_THREADS>(a, r, n, dy);
        row_each<LAUNCH_THREADS, packs>(a.cols, [&](int k, int) {
#pragma unroll
            for (int j = 0; j < PACK; j++)
                dw.of[k].x[j] += dy.of[k].x[j] * n.of[k].x[j];
            pack_add(db.of[k], dy.of[k]);
        });
        add_dx<LAUNCH_THREADS>(a, r, n, dy, dx, dx_sum);
    }
    row_store<LAUNCH_THREADS>(parts + (int64_t)blockIdx.x * a.cols, dw, a.cols);
    row_store<LAUNCH_THREADS>(parts + ((int64_t)gridDim.x + blockIdx.x) * a.cols, db, a.cols);
    if (a.dx_sum)
        row_shared_store<LAUNCH_THREADS>(parts, 2, dx_sum, a.cols);
}

/* Rows that are too long, or not aligned. */

/* Four blocks on a processor: else sm_80's compiler takes fewer registers, and spills. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS, 4)
    layer_norm_dx_kernel(const __grid_constant__ struct layer_norm_backward a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const int64_t at = r * a.cols;
        const float mean = a.mean[r], rstd = a.rstd[r];
        const auto load = [&](auto width,
                              int64_t c) { /* g and n */
                                           pack_set<width.value, 2> of = {
                                               { pack_load<width.value>(a.dy, a.dy_type, at + c),
                                                 pack_load<width.value>(a.x + at, c) }
                                           };
                                           const auto w = pack_load<width.value>(a.w, c);

#pragma unroll
                                           for (int j = 0; j < width.value; j++) {
                                               of.of[0].x[j] *= w.x[j];
                                               of.of[1].x[j] = (of.of[1].x[j] - mean) * rstd;
                                           }
                                           return of;
        };
        double g_sum = 0, gn_sum = 0;

        pack_each<N, 2>(pack_of_block(), 0, a.cols, load, [&](auto width, int64_t, auto x) {
#pragma unroll
            for (int j = 0; j < width.value; j++) {
                g_sum += (double)x.of[0].x[j];
                gn_sum += (double)(x.of[0].x[j] * x.of[1].x[j]);
            }
        });
        const float g_mean = (float)(reduce_block(g_sum, reduce_sum()) / (double)a.cols);
        const float gn_mean = (float)(reduce_block(gn_sum, reduce_sum()) / (double)a.cols);
        pack_each<N, 1>(pack_of_block(), 0, a.cols, load, [&](auto width, int64_t c, auto x) {
            auto dx = pack_load<width.value>(a.dx + at, c);

#pragma unroll
            for (int j = 0; j < width.value; j++)
                dx.x[j] += rstd * (x.of[0].x[j] - g_mean - x.of[1].x[j] * gn_mean);
            pack_store(a.dx + at, c, dx);
            if (a.rounded)
                pack_store(a.rounded + at, c, dx);
        });
    }
}

/* dw += dy n and db += dy, or a sum for each block of rows. */
template <int N, enum dtype dy_type>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    layer_norm_dw_kernel(const __grid_constant__ struct layer_norm_backward a, float *dw_parts,
                         float *db_parts)
{
    const int64_t rows = a.rows / gridDim.y, first = rows * blockIdx.y;
    const int64_t to = a.block_step * blockIdx.y;
    float sums[2]; /* dw and db */

    reduce_columns<N>(sums, rows, a.cols, [&](int64_t row, int64_t col) {
        const int64_t r = first + row, at = r * a.cols + col;
        const float mean = a.mean[r], rstd = a.rstd[r];
        const struct pack<N> dy = pack_load<N>(a.dy, dy_type, at), x = pack_load<N>(a.x, at);
        struct pack_set<N, 2> of = {
            {
                {}, dy
            }
        };

#pragma unroll
        for (int j = 0; j < N; j++)
            of.of[0].x[j] = dy.x[j] * ((x.x[j] - mean) * rstd);
        return of;
    });
    reduce_store<N>(a.dw + to, dw_parts, a.cols, a.blocks, sums[0]);
    reduce_store<N>(a.db + to, db_parts, a.cols, a.blocks, sums[1]);
}

using dw_kernel = void (*)(struct layer_norm_backward, float *, float *);

template <int N> static dw_kernel dw_kernel_of(const struct layer_norm_backward *a)
{
    return a->dy_type == DTYPE_BF16 ? layer_norm_dw_kernel<N, DTYPE_BF16>
                                    : layer_norm_dw_kernel<N, DTYPE_F32>;
}

/* dx, then dw and db in a kernel of their own, and dx_sum in that of a bias' gradient. */
static void run_apart(struct device_queue *q, const struct layer_norm_backward *a, bool is_packed)
{
    const int blocks = a->blocks > 0 ? a->blocks : 1;
    const struct bias_gradient dx_sum = { a->dx_sum, a->dx, DTYPE_F32, a->rows, a->cols,
                                          0,         0,     0,         false };
    struct reduce_plan p;

    launch_rows(q, "the gradient of layer norm", a->rows,
                is_packed ? layer_norm_dx_kernel<PACK> : layer_norm_dx_kernel<1>, *a);
    if (a->dx_sum)
        cuda_run_bias_gradient(q, &dx_sum);
    if (!reduce_plan_make(&p, q, a->rows / blocks, a->cols, blocks, 2))
        return;
    launch(q, "the gradient of layer norm", reduce_plan_grid(&p, is_packed ? PACK : 1),
           is_packed ? dw_kernel_of<PACK>(a) : dw_kernel_of<1>(a), *a, reduce_plan_parts(&p, 0),
           reduce_plan_parts(&p, 1));
    reduce_plan_add(q, &p, 0, a->dw, a->block_step, a->blocks > 0);
    reduce_plan_add(q, &p, 1, a->db, a->block_step, a->blocks > 0);
}

static const struct row_kernels<void (*)(struct layer_norm_backward, float *)> BACKWARD = {
    { layer_norm_backward_warp_kernel<4>, layer_norm_backward_warp_kernel<6>,
      layer_norm_backward_warp_kernel<ROW_PACKS> },
    {
        layer_norm_backward_block_kernel<2>, layer_norm_backward_block_kernel<4>,
            layer_norm_backward_block_kernel<ROW_PACKS>
    }
};

void cuda_run_layer_norm_backward(struct device_queue *q, const struct layer_norm_backward *a)
{
    const bool is_packed =
        a->cols % PACK == 0 && pack_is_aligned(a->dx, a->dy, a->x, a->w, a->rounded);

    if (is_packed && a->cols <= ROW_MAX && a->blocks == 0)
        row_launch_sums(q, "the gradient of layer norm", BACKWARD, *a,
                        { { a->dw, a->db, a->dx_sum } });
    else
        run_apart(q, a, is_packed);
}
