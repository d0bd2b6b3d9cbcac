/*
 * kernels/cuda/attention_tile.cuh - the two products of attention.cu, of a block's own rows with a
 * tile of others.
 *
 * Warp w has its block's rows w and w + 8; lane l has the tile's row l in a product of rows, and
 * columns l, l + 32, ... in a sum of rows. Both pass over the columns of a head 32 at a time,
 * through shared memory.
 */
#ifndef KERNELS_CUDA_ATTENTION_TILE_CUH
#define KERNELS_CUDA_ATTENTION_TILE_CUH

#include "kernels/cuda/attention_rows.cuh"

enum {
    ATTENTION_M = 16, /* a block's own rows */
    ATTENTION_N = 32, /* others that it works on at a time */
    ATTENTION_OWN = ATTENTION_M / LAUNCH_WARPS,
    ATTENTION_CHUNKS = 8, /* of 32 columns */
    ATTENTION_HEAD_DIM_MAX = 32 * ATTENTION_CHUNKS,
};

/* 32 columns of a block's own rows and of a tile. One more column, so that the lanes of a warp read
 * different banks. */
struct attention_pair_tile {
    float own[ATTENTION_M][33], other[ATTENTION_N][33];
};

/* ---- a warp ---- */

static __device__ inline int attention_own_row(int i)
{
    return (int)(threadIdx.x / 32) + i * LAUNCH_WARPS;
}

static __device__ inline float attention_warp_max(float x)
{
    for (int d = 16; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

static __device__ inline float attention_warp_sum(float x)
{
    for (int d = 16; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* ---- products ---- */

/* Load columns col .. col + 31 of n rows, beginning at `first`; 0 outside of the head. */
static __device__ inline void attention_load(float (*to)[33], int n, const struct attention *a,
                                             const void *x, int64_t ld,
                                             const struct attention_rows &rows, int64_t first,
                                             int64_t col)
{
    const int64_t c = col + threadIdx.x % 32;

    for (int i = (int)(threadIdx.x / 32); i < n; i += LAUNCH_WARPS) {
        int64_t row = first + i;
        bool in = row < rows.rows && c < a->head_dim;

        to[i][threadIdx.x % 32] =
            in ? launch_load(x, a->type, (rows.at + row) * ld + rows.col + c) : 0;
    }
}

/* dots[i] += the product of own row i of x and the lane's row of y: row n + lane of `others`. All
 * threads of the block call it. */
static __device__ inline void attention_dots(struct attention_pair_tile *t,
                                             const struct attention *a, const void *x, int64_t ldx,
                                             const struct attention_rows &own, const void *y,
                                             int64_t ldy, const struct attention_rows &others,
                                             int64_t n, float *dots)
{
    const int lane = (int)(threadIdx.x % 32);

    for (int64_t col = 0; col < a->head_dim; col += 32) {
        int width = (int)(a->head_dim - col < 32 ? a->head_dim - col : 32);

        __syncthreads(); /* the tile may still be read */
        attention_load(t->own, ATTENTION_M, a, x, ldx, own, own.first, col);
        attention_load(t->other, ATTENTION_N, a, y, ldy, others, n, col);
        __syncthreads();
        for (int c = 0; c < width; c++) {
            float of_lane = t->other[lane][c];

            for (int i = 0; i < ATTENTION_OWN; i++)
                dots[i] += t->own[attention_own_row(i)][c] * of_lane;
        }
    }
}

/* sums[i][c] += the sum over a tile's rows r of weights[own row i][r] * y[n + r], for the lane's
 * columns. A warp reads the weights that it has written. All threads of the block call it. */
static __device__ inline void attention_add(struct attention_pair_tile *t,
                                            const struct attention *a,
                                            const float (*weights)[ATTENTION_N], const void *y,
                                            int64_t ldy, const struct attention_rows &others,
                                            int64_t n, float (*sums)[ATTENTION_CHUNKS])
{
    const int lane = (int)(threadIdx.x % 32);
    const int rows = (int)(others.rows - n < ATTENTION_N ? others.rows - n : ATTENTION_N);

#pragma unroll
    for (int chunk = 0; chunk < ATTENTION_CHUNKS; chunk++) {
        if (32 * chunk >= a->head_dim)
            break;
        __syncthreads(); /* the tile may still be read; the weights are written */
        attention_load(t->other, ATTENTION_N, a, y, ldy, others, n, 32 * chunk);
        __syncthreads();
#pragma unroll 4
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < ATTENTION_OWN; i++)
                sums[i][chunk] += weights[attention_own_row(i)][r] * t->other[r][lane];
    }
    __syncwarp(); /* the weights have been read */
}

/* Whether the kernels can compute this attention; if not, the device fails. */
static inline bool attention_check(struct device_queue *q, const struct attention *a)
{
    struct tp_err err;

    if (a->head_dim <= ATTENTION_HEAD_DIM_MAX)
        return true;
    tp_fail(&err, TP_E_USAGE,
            "heads have %lld columns, and on a GPU at most %d are supported; use --device cpu",
            (long long)a->head_dim, (int)ATTENTION_HEAD_DIM_MAX);
    device_fail(q->device, &err);
    return false;
}

#endif
