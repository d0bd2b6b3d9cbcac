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

/* f(k, column) for this worker's packs from number `from` on. */
template <int workers, int packs = ROW_PACKS, int from = 0, typename F>
static __device__ inline void row_each(int64_t cols, F f)
{
    const int me = workers == 32 ? launch_lane() : (int)threadIdx.x;

#pragma unroll
    for (int k = from; k < packs; k++) {
        const int c = (me + k * workers) * PACK;

        if (c < cols)
            f(k, c);
    }
}

/* Add x[s] over the workers, for each of them. */
template <int workers, int n> static __device__ inline void row_reduce(double (&x)[n])
{
    for (int d = 16; d > 0; d /= 2)
        for (int s = 0; s < n; s++)
            x[s] += __shfl_xor_sync(0xffffffffu, x[s], d);
    if constexpr (workers != 32) {
        __shared__ double of_warp[LAUNCH_WARPS][n];

        __syncthreads(); /* an earlier call's numbers may still be read */
        for (int s = 0; s < n && launch_lane() == 0; s++)
            of_warp[threadIdx.x / 32][s] = x[s];
        __syncthreads();
        for (int s = 0; s < n; s++)
            x[s] = of_warp[threadIdx.x % LAUNCH_WARPS][s];
        for (int d = LAUNCH_WARPS / 2; d > 0; d /= 2)
            for (int s = 0; s < n; s++)
                x[s] += __shfl_xor_sync(0xffffffffu, x[s], d);
    }
}

/* sums[s] = the sum of f(s, k, j) over the elements of all workers' packs, for each worker: those
 * of a pack in f32, because a GPU converts few numbers to double at a time, then in double. */
template <int workers, int packs, int n, typename F>
static __device__ inline void row_sums(double (&sums)[n], int64_t cols, F f)
{
    for (int s = 0; s < n; s++)
        sums[s] = 0;
    row_each<workers, packs>(cols, [&](int k, int) {
        for (int s = 0; s < n; s++)
            sums[s] += (double)((f(s, k, 0) + f(s, k, 1)) + (f(s, k, 2) + f(s, k, 3)));
    });
    row_reduce<workers>(sums);
}
static_assert(PACK == 4, "row_sums adds four elements");

template <int workers, int packs, typename F>
static __device__ inline double row_sum(int64_t cols, F f)
{
    double sum[1];

    row_sums<workers, packs>(sum, cols, [&](int, int k, int j) { return f(k, j); });
    return sum[0];
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
static __device__ inline void row_add(struct row_packs<packs> &x, const struct row_packs<packs> &y,
                                      int64_t cols)
{
    row_each<workers, packs>(cols, [&](int k, int) { pack_add(x.of[k], y.of[k]); });
}

template <int workers, int packs>
static __device__ inline void row_add(struct row_packs<packs> &x, const float *from, int64_t cols)
{
    row_each<workers, packs>(cols,
                             [&](int k, int c) { pack_add(x.of[k], pack_load<PACK>(from, c)); });
}

/* x = block, or x if that is NULL, plus residual, if that is not NULL: rows from `at` on. All loads
 * come before the sum, so that they are in flight together. */
template <int workers, int packs>
static __device__ inline void row_load_sum(struct row_packs<packs> &to, const uint16_t *block,
                                           const float *x, const float *residual, int64_t at,
                                           int64_t cols)
{
    struct row_packs<packs> y;

    if (block && residual) {
        row_load<workers>(to, block + at, cols);
        row_load<workers>(y, residual + at, cols);
    } else if (block) {
        row_load<workers>(to, block + at, cols);
        return;
    } else if (residual) {
        row_load<workers>(to, x + at, cols);
        row_load<workers>(y, residual + at, cols);
    } else {
        row_load<workers>(to, x + at, cols);
        return;
    }
    row_add<workers>(to, y, cols);
}

template <int workers, int packs, int from, int to>
static __device__ inline void row_multiply(struct row_packs<packs> &x,
                                           const struct row_packs<packs> &by, int64_t cols)
{
    row_each<workers, to, from>(cols, [&](int k, int) {
#pragma unroll
        for (int j = 0; j < PACK; j++)
            x.of[k].x[j] *= by.of[k].x[j];
    });
}

/* The same with numbers in memory. */
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

/* The kernels that keep rows in registers: so many packs of them for each worker. */
template <typename K> struct row_kernels {
    K by_warp[3];  /* 4, 6 and ROW_PACKS packs of a lane */
    K by_block[3]; /* 2, 4 and ROW_PACKS packs of a thread */
};

static inline bool row_is_by_warp(int64_t cols)
{
    return cols <= ROW_BY_WARP;
}

/* The packs of a thread of the kernel by_block for rows of so many columns. */
static inline int row_block_packs(int64_t cols)
{
    const int64_t packs = pack_count(cols, LAUNCH_THREADS * PACK);

    return packs <= 2 ? 2 : packs <= 4 ? 4 : (int)ROW_PACKS;
}

template <typename K> static inline K row_kernel(const struct row_kernels<K> &of, int64_t cols)
{
    const int64_t packs = pack_count(cols, 32 * PACK);

    return row_is_by_warp(cols) ? of.by_warp[packs <= 4   ? 0
                                             : packs <= 6 ? 1
                                                          : 2]
                                : of.by_block[row_block_packs(cols) / 4];
}

/* Blocks on a processor, whose threads load so many packs of two rows. */
static __host__ __device__ constexpr int row_blocks(int packs)
{
    return packs <= 2 ? 5 : packs <= 4 ? 4 : packs <= 6 ? 3 : 2;
}

/* Launch the kernel for rows of so many columns; packed and any keep no rows in registers. Each
 * warp or block has one row: a processor that has finished one gets the next. */
template <typename K, typename A>
static inline void row_launch(struct device_queue *q, const char *what, bool is_packed,
                              const struct row_kernels<K> &kernels, K packed, K any, const A &a)
{
    if (is_packed && a.cols <= ROW_MAX)
        launch_each(q, what, row_is_by_warp(a.cols) ? launch_warp_blocks(a.rows) : a.rows,
                    row_kernel(kernels, a.cols), a);
    else
        launch_rows(q, what, a.rows, is_packed ? packed : any, a);
}

/* ---- sums of columns ----
 *
 * Each block sums its rows; a second kernel adds the sums of all blocks, in a fixed order. So what
 * a row's kernel has in registers is not read again. A grid has as many blocks as a GPU holds at
 * once, and the order depends on that number. */

/* Blocks on a processor, whose threads keep so many packs of three rows, and of the sums. */
static __host__ __device__ constexpr int row_sum_blocks(int packs)
{
    return packs <= 2 ? 3 : packs <= 4 ? 2 : 1;
}

enum { ROW_WARP_BLOCKS = 2, ROW_LEAST = 4 /* rows of a block, where there are as many */ };

/* Add to a block's sums the rows that its first n_rows warps have: f(s, k) is the pack of sum
 * number s of the lane's columns k. Thread 128 s + i gets in total[k] sum s of column 128 k + i.
 * All threads of the block call it. */
template <int sums, int packs, typename F>
static __device__ inline void row_add_columns(float (&total)[packs], int64_t cols, int n_rows, F f)
{
    enum { COLUMNS = 32 * PACK };
    __shared__ struct pack_memory<float, PACK> of_warp[2][sums][LAUNCH_WARPS][32];
    const int lane = launch_lane(), warp = (int)(threadIdx.x / 32);
    const int s = (int)threadIdx.x / COLUMNS, i = (int)threadIdx.x % COLUMNS;

    __syncthreads(); /* an earlier call's numbers may still be read */
#pragma unroll
    for (int k = 0; k < packs; k++) {
        if (k * COLUMNS >= cols)
            break;
        if (k * COLUMNS + lane * PACK < cols)
            for (int of = 0; of < sums; of++) {
                const struct pack<PACK> x = warp < n_rows ? f(of, k) : pack<PACK> {
                };
                struct pack_memory<float, PACK> whole; /* one store */

#pragma unroll
                for (int j = 0; j < PACK; j++)
                    whole.x[j] = x.x[j];
                of_warp[k % 2][of][warp][lane] = whole;
            }
        __syncthreads();
        if (s < sums && k * COLUMNS + i < cols)
            for (int w = 0; w < LAUNCH_WARPS; w++)
                total[k] += of_warp[k % 2][s][w][i / PACK].x[i % PACK];
    }
}

/* Store the sums of row_add_columns at parts[sum][block][column]. */
template <int sums, int packs>
static __device__ inline void row_store_columns(float *parts, const float (&total)[packs],
                                                int64_t cols)
{
    const int s = (int)threadIdx.x / (32 * PACK), i = (int)threadIdx.x % (32 * PACK);
    float *to = parts + ((int64_t)s * gridDim.x + blockIdx.x) * cols;

#pragma unroll
    for (int k = 0; k < packs; k++)
        if (s < sums && k * 32 * PACK + i < cols)
            to[k * 32 * PACK + i] = total[k];
}

/* A sum of columns for which there are no registers: each thread has a place in shared memory for
 * each of its packs, so threads wait for others only at the end. */
template <int packs> struct row_shared_sum {
    struct pack_memory<float, PACK> of[packs][LAUNCH_THREADS];
};

template <int packs>
static __device__ inline void row_shared_clear(struct row_shared_sum<packs> &to)
{
#pragma unroll
    for (int k = 0; k < packs; k++)
        to.of[k][threadIdx.x] = {};
}

template <int workers, int packs>
static __device__ inline void row_shared_add(struct row_shared_sum<packs> &to,
                                             const struct row_packs<packs> &x, int64_t cols)
{
    row_each<workers, packs>(cols, [&](int k, int) {
        struct pack_memory<float, PACK> sum = to.of[k][threadIdx.x];

#pragma unroll
        for (int j = 0; j < PACK; j++)
            sum.x[j] += x.of[k].x[j];
        to.of[k][threadIdx.x] = sum;
    });
}

/* Store this block's sum at parts[number][block][column]. All threads of the block call it. */
template <int workers, int packs>
static __device__ inline void row_shared_store(float *parts, int number,
                                               const struct row_shared_sum<packs> &sum,
                                               int64_t cols)
{
    float *to = parts + ((int64_t)number * gridDim.x + blockIdx.x) * cols;

    if constexpr (workers == 32) { /* a thread adds what the warps have of a pack */
        const int k = (int)threadIdx.x / 32, c = (int)threadIdx.x * PACK;
        struct pack_memory<float, PACK> whole = {
        };

        static_assert(packs <= LAUNCH_WARPS, "a thread stores at most one pack");
        __syncthreads();
        if (c >= cols)
            return;
        for (int w = 0; w < LAUNCH_WARPS; w++) {
            const struct pack_memory<float, PACK> part = sum.of[k][w * 32 + launch_lane()];

#pragma unroll
            for (int j = 0; j < PACK; j++)
                whole.x[j] += part.x[j];
        }
        pack_write(to + c, whole);
    } else {
        row_each<workers, packs>(cols,
                                 [&](int k, int c) { pack_write(to + c, sum.of[k][threadIdx.x]); });
    }
}

/* What a row was that a kernel adds to. It is loaded beside what the sum is computed from, not
 * after it, if there are registers. */
template <int packs> struct row_before {
    static constexpr bool is_early = packs < ROW_PACKS;
    struct row_packs<is_early ? packs : 1> x;
};

template <int workers, int packs>
static __device__ inline void row_load_before(struct row_before<packs> &to, const float *from,
                                              int64_t cols)
{
    if constexpr (row_before<packs>::is_early)
        row_load<workers>(to.x, from, cols);
}

/* x += what row `from` was. */
template <int workers, int packs>
static __device__ inline void row_add_before(struct row_packs<packs> &x,
                                             const struct row_before<packs> &before,
                                             const float *from, int64_t cols)
{
    if constexpr (row_before<packs>::is_early)
        row_add<workers>(x, before.x, cols);
    else
        row_add<workers>(x, from, cols);
}

/* Launch the kernel for rows of so many columns, at most ROW_MAX, and add sum number i to
 * out.of[i]. The kernel's second argument receives the sums of blocks. */
template <typename A>
static inline void row_launch_sums(struct device_queue *q, const char *what,
                                   const struct row_kernels<void (*)(A, float *)> &kernels,
                                   const A &a, const struct reduce_outputs &out)
{
    const bool is_by_warp = row_is_by_warp(a.cols);
    const int least = is_by_warp ? (int)LAUNCH_WARPS : (int)ROW_LEAST;
    const unsigned blocks =
        launch_blocks(q, (a.rows + least - 1) / least,
                      is_by_warp ? (int)ROW_WARP_BLOCKS : row_sum_blocks(row_block_packs(a.cols)));
    float *parts;

    if (a.rows == 0)
        return;
    parts = static_cast<float *>(
        device_scratch(q, reduce_outputs_count(&out) * blocks * a.cols * (int64_t)sizeof *parts));
    if (!parts) /* the device keeps the failure */
        return;
    launch(q, what, dim3(blocks), row_kernel(kernels, a.cols), a, parts);
    reduce_rows_add(q, parts, blocks, a.cols, &out);
}

#endif
