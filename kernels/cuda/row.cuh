/*
 * kernels/cuda/row.cuh - rows of a matrix that stay in registers between two passes over them:
 * aligned rows of whole packs, up to ROW_PACKS packs for each lane of a warp or thread of a block.
 */
#ifndef KERNELS_CUDA_ROW_CUH
#define KERNELS_CUDA_ROW_CUH

#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

enum { ROW_PACKS = 8, ROW_BY_WARP = 32 * PACK * ROW_PACKS, ROW_MAX = LAUNCH_WARPS * ROW_BY_WARP };

/* A worker's packs of a row: number k is column (worker + k * workers) * PACK. */
struct row_packs {
    struct pack<PACK> of[ROW_PACKS];
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
template <int workers, typename F> static __device__ inline void row_each(int64_t cols, F f)
{
    const int me = workers == 32 ? launch_lane() : (int)threadIdx.x;

#pragma unroll
    for (int k = 0; k < ROW_PACKS; k++) {
        const int c = (me + k * workers) * PACK;

        if (c < cols)
            f(k, c);
    }
}

/* f over the elements of all workers' packs, added in double, for each worker. */
template <int workers, typename F> static __device__ inline double row_sum(int64_t cols, F f)
{
    double sum = 0;

    row_each<workers>(cols, [&](int k, int c) {
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
template <int workers, typename T>
static __device__ inline void row_load(struct row_packs &x, const T *from, int64_t cols)
{
    row_each<workers>(cols, [&](int k, int c) { x.of[k] = pack_load<PACK>(from, c); });
}

/* Elements from `at` on. The loads of a type are together, so that they are in flight together. */
template <int workers>
static __device__ inline void row_load(struct row_packs &x, const void *from, enum dtype type,
                                       int64_t at, int64_t cols)
{
    if (type == DTYPE_F32)
        row_load<workers>(x, static_cast<const float *>(from) + at, cols);
    else
        row_load<workers>(x, static_cast<const uint16_t *>(from) + at, cols);
}

template <int workers>
static __device__ inline void row_add(struct row_packs &x, const float *from, int64_t cols)
{
    row_each<workers>(cols, [&](int k, int c) { pack_add(x.of[k], pack_load<PACK>(from, c)); });
}

template <int workers, typename T>
static __device__ inline void row_store(T *to, const struct row_packs &x, int64_t cols)
{
    row_each<workers>(cols, [&](int k, int c) { pack_store(to, c, x.of[k]); });
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

#endif
