/*
 * kernels/cuda/row.cuh - rows of a matrix that stay in registers between two passes over them:
 * aligned rows of whole packs, up to ROW_PACKS packs for each lane of a warp or thread of a block;
 * and sums of columns that are computed beside, from what is in registers.
 */
#ifndef KERNELS_CUDA_ROW_CUH
#define KERNELS_CUDA_ROW_CUH

#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

enum { ROW_PACKS = 8, ROW_BY_WARP = 32 * PACK * ROW_PACKS, ROW_MAX = LAUNCH_WARPS * ROW_BY_WARP };

/* A worker's packs of a row: number k is column (worker + k * workers) * PACK. */
template <int packs = ROW_PACKS> struct row_packs {
    struct pack<PACK> of[packs];
};

/* workers: 32 or LAUNCH_THREADS. The first row of this warp or block, and how far the next one
 * is. */
template <int workers> static __device__ inline int64_t row_first(void)
{
    return workers == 32 ? launch_warp() : blockIdx.x;
}

template <int workers> static __device__ inline int64_t row_step(void)
{
    return workers == 32 ? launch_warps() : gridDim.x;
}

/* f(k, column) for this worker's packs. */
template <int workers, int packs = ROW_PACKS, typename F>
static __device__ inline void row_each(int64_t cols, F f)
{
    const int me = workers == 32 ? launch_lane() : (int)threadIdx.x;

#pragma unroll
    for (int k = 0; k < packs; k++) {
        const int c = (me + k * workers) * PACK;

        if (c < cols)
            f(k, c);
    }
}

/* f over the elements of all workers' packs, added in double, for each worker. */
template <int workers, int packs = ROW_PACKS, typename F>
static __device__ inline double row_sum(int64_t cols, F f)
{
    double sum = 0;

    row_each<workers, packs>(cols, [&](int k, int c) {
#pragma unroll
        for (int j = 0; j < PACK; j++)
            sum += (double)f(k, c, j);
    });
    if constexpr (workers == 32)
        return reduce_warp(sum, reduce_sum());
    else
        return reduce_block(sum, reduce_sum());
}

/* T: float or uint16_t, bf16. */
template <int workers, int packs, typename T>
static __device__ inline void row_load(struct row_packs<packs> &x, const T *from, int64_t cols)
{
    row_each<workers, packs>(cols, [&](int k, int c) { x.of[k] = pack_load<PACK>(from, c); });
}

/* Elements from `at` on. The loads of a type are together, so that they are in flight together. */
template <int workers, int packs>
static __device__ inline void row_load(struct row_packs<packs> &x, const void *from,
                                       enum dtype type, int64_t at, int64_t cols)
{
    if (type == DTYPE_F32)
        row_load<workers>(x, static_cast<const float *>(from) + at, cols);
    else
        row_load<workers>(x, static_cast<const uint16_t *>(from) + at, cols);
}

template <int workers, int packs>
static __device__ inline void row_add(struct row_packs<packs> &x, const float *from, int64_t cols)
{
    row_each<workers, packs>(cols,
                             [&](int k, int c) { pack_add(x.of[k], pack_load<PACK>(from, c)); });
}

template <int workers, int packs>
static __device__ inline void row_multiply(struct row_packs<packs> &x, const float *by,
                                           int64_t cols)
{
    row_each<workers, packs>(cols, [&](int k, int c) {
        const struct pack<PACK> w = pack_load<PACK>(by, c);

#pragma unroll
        for (int j = 0; j < PACK; j++)
            x.of[k].x[j] *= w.x[j];
    });
}

template <int workers, int packs, typename T>
static __device__ inline void row_store(T *to, const struct row_packs<packs> &x, int64_t cols)
{
    row_each<workers, packs>(cols, [&](int k, int c) { pack_store(to, c, x.of[k]); });
}

/* Launch the kernel for rows of so many columns: by_warp and by_block keep rows in registers,
 * packed and any do not. */
template <typename K, typename A>
static inline void row_launch(struct device_queue *q, const char *what, bool is_packed, K by_warp,
                              K by_block, K packed, K any, const A &a)
{
    if (is_packed && a.cols <= ROW_BY_WARP)
        launch_warp_rows(q, what, a.rows, by_warp, a);
    else
        launch_rows(q, what, a.rows, !is_packed ? any : a.cols <= ROW_MAX ? by_block : packed, a);
}

/* ---- sums of columns ----
 *
 * Each block sums its rows; a second kernel adds the sums of all blocks, in a fixed order. So what
 * a row's kernel has in registers is not read again. A grid has as many blocks as a GPU holds at
 * once, and the order depends on that number. */

/* Blocks on a processor, whose threads keep so many packs of two rows, and of the sums. */
static __host__ __device__ constexpr int row_blocks(int packs)
{
    return packs <= 2 ? 3 : packs <= 4 ? 2 : 1;
}

enum { ROW_WARP_BLOCKS = 2, ROW_LEAST = 4 /* rows of a block, where there are as many */ };

/* Add to a block's sums the rows that its first n_rows warps have: f(s, k) is the pack of sum
 * number s of the lane's columns k. Thread 128 s + i gets in total[k] sum s of column 128 k + i.
 * All threads of the block call it. */
template <int sums, typename F>
static __device__ inline void row_add_columns(float (&total)[ROW_PACKS], int64_t cols, int n_rows,
                                              F f)
{
    enum { COLUMNS = 32 * PACK };
    __shared__ struct pack_memory<float, PACK> of_warp[2][sums][LAUNCH_WARPS][32];
    const int lane = launch_lane(), warp = (int)(threadIdx.x / 32);
    const int s = (int)threadIdx.x / COLUMNS, i = (int)threadIdx.x % COLUMNS;

    __syncthreads(); /* an earlier call's numbers may still be read */
#pragma unroll
    for (int k = 0; k < ROW_PACKS; k++) {
        if (k * COLUMNS >= cols)
            break;
        if (warp < n_rows && k * COLUMNS + lane * PACK < cols)
            for (int of = 0; of < sums; of++) {
                const struct pack<PACK> x = f(of, k);
                struct pack_memory<float, PACK> whole; /* one store */

#pragma unroll
                for (int j = 0; j < PACK; j++)
                    whole.x[j] = x.x[j];
                of_warp[k % 2][of][warp][lane] = whole;
            }
        __syncthreads();
        if (s < sums && k * COLUMNS + i < cols)
            for (int w = 0; w < n_rows; w++)
                total[k] += of_warp[k % 2][s][w][i / PACK].x[i % PACK];
    }
}

/* Store the sums of row_add_columns at parts[sum][block][column]. */
template <int sums>
static __device__ inline void row_store_columns(float *parts, const float (&total)[ROW_PACKS],
                                                int64_t cols)
{
    const int s = (int)threadIdx.x / (32 * PACK), i = (int)threadIdx.x % (32 * PACK);
    float *to = parts + ((int64_t)s * gridDim.x + blockIdx.x) * cols;

#pragma unroll
    for (int k = 0; k < ROW_PACKS; k++)
        if (s < sums && k * 32 * PACK + i < cols)
            to[k * 32 * PACK + i] = total[k];
}

/* Kernels that sum columns beside what they do with rows; their second argument receives the
 * sums. */
template <typename A> struct row_kernels {
    void (*by_warp)(A, float *), (*by_block[3])(A, float *); /* of 2, 4 and ROW_PACKS packs */
};

/* Launch the kernel for rows of so many columns, at most ROW_MAX, and add sum number i to out[i].
 */
template <int sums, typename A>
static inline void row_launch_sums(struct device_queue *q, const char *what,
                                   const struct row_kernels<A> &kernels, const A &a,
                                   float *const (&out)[sums])
{
    const bool is_by_warp = a.cols <= ROW_BY_WARP;
    const int of = a.cols <= 2 * LAUNCH_THREADS * PACK   ? 0
                   : a.cols <= 4 * LAUNCH_THREADS * PACK ? 1
                                                         : 2;
    const int least = is_by_warp ? (int)LAUNCH_WARPS : (int)ROW_LEAST;
    const unsigned blocks = launch_blocks(q, (a.rows + least - 1) / least,
                                          is_by_warp ? (int)ROW_WARP_BLOCKS : row_blocks(2 << of));
    float *parts;

    if (a.rows == 0)
        return;
    parts =
        static_cast<float *>(device_scratch(q, sums * blocks * a.cols * (int64_t)sizeof *parts));
    if (!parts) /* the device keeps the failure */
        return;
    launch(q, what, dim3(blocks), is_by_warp ? kernels.by_warp : kernels.by_block[of], a, parts);
    reduce_rows_add(q, parts, blocks, a.cols, out, sums);
}

#endif
