/*
 * kernels/cuda/reduce.cuh - sums and maxima over the threads of a block, and sums of columns. Their
 * order depends only on the shape, and where reduce_full_parts is used on the number of the GPU's
 * processors, so every run gives the same bits.
 */
#ifndef KERNELS_CUDA_REDUCE_CUH
#define KERNELS_CUDA_REDUCE_CUH

#include "kernels/cuda/pack.cuh"

struct reduce_sum {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a + b;
    }
};

struct reduce_max {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a > b ? a : b;
    }
};

/* op over the x of all lanes of a warp, for every lane. All lanes call it. */
template <typename T, typename F> static __device__ T reduce_warp(T x, F op)
{
    for (int d = 16; d > 0; d /= 2)
        x = op(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

/* op over the x of all threads of a block, for every thread. All threads call it. */
template <typename T, typename F> static __device__ T reduce_block(T x, F op)
{
    __shared__ T of_warp[LAUNCH_WARPS];

    for (int d = 16; d > 0; d /= 2)
        x = op(x, __shfl_xor_sync(0xffffffffu, x, d));
    __syncthreads(); /* an earlier call's numbers may still be read */
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warp[threadIdx.x % LAUNCH_WARPS];
    for (int d = LAUNCH_WARPS / 2; d > 0; d /= 2)
        x = op(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

/* ---- sums of columns ----
 *
 * A block has 32 packs of N columns, of a part of the rows: so many parts that they fill a GPU,
 * because few columns with many rows are usual. A second kernel adds the sums of several parts.
 * The order in which a column is summed does not depend on N. */

enum { REDUCE_PART = 8 * LAUNCH_WARPS /* rows, at least */, REDUCE_PARTS = 256 /* at most */ };

/* Sums of n_cols columns, `count` times; numbers of the grid's y. */
struct reduce_plan {
    float
        *parts; /* [n_parts][count][cols], for each of the kernel's sums; NULL: there is one part */
    int64_t cols;
    int n_parts, count;
};

/* `sums`: how many different sums the kernel computes. False: the device has failed. */
bool reduce_plan_make(struct reduce_plan *p, struct device_queue *q, int64_t rows, int64_t cols,
                      int count, int sums, int most_parts = REDUCE_PARTS);

/* As many parts as let blocks of packs of `width` columns fill the GPU once, with so many on a
 * processor: a block then has many rows, and loads some while it adds others. The parts are few
 * numbers. */
int reduce_full_parts(const struct device_queue *q, int64_t cols, int count, int width,
                      int blocks_a_processor);

/* The memory for parts of sum number i. */
static inline float *reduce_plan_parts(const struct reduce_plan *p, int i)
{
    return p->parts ? p->parts + i * p->n_parts * p->count * p->cols : nullptr;
}

/* After the kernel: add the parts of sum number i. Number k of the `count` sums is added to out +
 * k * out_step, or is stored there. Does nothing if there is one part. */
void reduce_plan_add(struct device_queue *q, const struct reduce_plan *p, int i, float *out,
                     int64_t out_step, bool is_stored);

/* Where sums of columns are added; NULL after the last one. */
struct reduce_outputs {
    float *of[3];
};

int reduce_outputs_count(const struct reduce_outputs *out);

/* Add to out->of[i] the sum of rows i * rows .. (i + 1) * rows - 1 of `parts`. */
void reduce_rows_add(struct device_queue *q, const float *parts, int64_t rows, int64_t cols,
                     const struct reduce_outputs *out);

/* The grid of the kernel, whose packs have `width` columns; and of one that has no plan, and sums
 * all rows in one part. */
static inline dim3 reduce_columns_grid(int64_t cols, int count, int width = 1, int n_parts = 1)
{
    return dim3((unsigned)pack_count(cols, 32 * width), (unsigned)count, (unsigned)n_parts);
}

static inline dim3 reduce_plan_grid(const struct reduce_plan *p, int width)
{
    return reduce_columns_grid(p->cols, p->count, width, p->n_parts);
}

/* part += rows r, r + LAUNCH_WARPS, ..., of which all are below `rows`, or some. All are loaded
 * without branches: behind one, nvcc converts a pack of bf16, and so waits for it, before it loads
 * the next. f32 is not converted. */
template <bool are_all, int N, int together, int count, typename F>
static __device__ inline void reduce_add_rows(struct pack_set<N, count> &part, int64_t r,
                                              int64_t rows, int64_t c, F f)
{
    struct pack_set<N, count> x[together] = {
    };

#pragma unroll
    for (int k = 0; k < together; k++)
        if (are_all || r + k * LAUNCH_WARPS < rows)
            x[k] = f(r + k * LAUNCH_WARPS, c);
#pragma unroll
    for (int k = 0; k < together; k++)
        for (int s = 0; s < count; s++)
            pack_add(part.of[s], x[k].of[s]);
}

/* The sums over this block's part of rows of f(row, column), which are pack_set<N, count> of
 * columns column .. column + N - 1: the result for column reduce_column<N>(cols) is in the first 32
 * N threads. Each warp adds every eighth row, 32 of them at a time, so that rounding grows in short
 * chains; so many loads of a warp are in flight `together`. All threads of the block call it. */
template <int N, int together = 4, int count, typename F>
static __device__ void reduce_columns(float (&sums)[count], int64_t all_rows, int64_t cols, F f)
{
    const int64_t least = (int64_t)REDUCE_PART * gridDim.z;
    const int64_t each = (all_rows + least - 1) / least * REDUCE_PART, begin = each * blockIdx.z;
    const int64_t rows = begin + each < all_rows ? begin + each : all_rows;
    enum { WORD = N < PACK ? N : PACK, WORDS = N / WORD };
    /* a second word is 16 banks further, where lanes read columns of both */
    __shared__ struct pack_memory<float, WORD> of_warp[count][LAUNCH_WARPS][WORDS]
                                                      [32 + (WORDS > 1 ? 4 : 0)];
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32);
    const int64_t c = ((int64_t)blockIdx.x * 32 + lane) * N;
    struct pack_set<N, count> total = {
    };

    for (int64_t first = begin + warp; first < rows && c < cols; first += 32 * LAUNCH_WARPS) {
        struct pack_set<N, count> part = {
        };

        for (int64_t r = first; r < rows && r < first + 32 * LAUNCH_WARPS;
             r += together * LAUNCH_WARPS) {
            if (N > PACK && r + (together - 1) * LAUNCH_WARPS < rows)
                reduce_add_rows<true, N, together>(part, r, rows, c, f);
            else
                reduce_add_rows<false, N, together>(part, r, rows, c, f);
        }
        for (int s = 0; s < count; s++)
            pack_add(total.of[s], part.of[s]);
    }
    __syncthreads(); /* an earlier call's numbers may still be read */
    for (int s = 0; s < count; s++)
        for (int k = 0; k < WORDS; k++) {
            struct pack_memory<float, WORD> whole; /* one store, so that lanes use other banks */

#pragma unroll
            for (int j = 0; j < WORD; j++)
                whole.x[j] = total.of[s].x[k * WORD + j];
            of_warp[s][warp][k][lane] = whole;
        }
    __syncthreads();
    for (int s = 0; s < count; s++) {
        sums[s] = 0;
        for (int w = 0; w < LAUNCH_WARPS && threadIdx.x < 32 * N; w++)
            sums[s] +=
                of_warp[s][w][threadIdx.x / WORD % WORDS][threadIdx.x / N].x[threadIdx.x % WORD];
    }
}

/* The column of a thread that has a sum of reduce_columns; -1: the thread has none. */
template <int N> static __device__ inline int64_t reduce_column(int64_t cols)
{
    int64_t c = (int64_t)blockIdx.x * 32 * N + threadIdx.x;

    return threadIdx.x < 32 * N && c < cols ? c : -1;
}

/* Store a sum of reduce_columns, if the thread has one: at `parts`, see reduce_plan_parts, or in
 * out[cols]. */
template <int N>
static __device__ inline void reduce_store(float *out, float *parts, int64_t cols, bool is_stored,
                                           float sum)
{
    const int64_t c = reduce_column<N>(cols);

    if (c < 0)
        return;
    if (parts)
        parts[((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * cols + c] = sum;
    else
        out[c] = is_stored ? sum : out[c] + sum;
}

#endif
