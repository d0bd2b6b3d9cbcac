/*
 * kernels/cuda/attention_mma.cuh - the two products of attention_mma.cu on tensor cores, of a
 * block's own rows with a tile of others.
 *
 * Warp w has its block's own rows 16 w .. 16 w + 15, in registers, as fragments (mma.cuh). The
 * other rows are in shared memory, and a warp takes 16 of them at a time. D is the number of
 * columns for which registers and shared memory are reserved; a head may have fewer.
 */
#ifndef KERNELS_CUDA_ATTENTION_MMA_CUH
#define KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/mma.cuh"

enum {
    ATTENTION_MMA_ROWS = 16,                               /* of a warp's own, and of others */
    ATTENTION_MMA_OWN = ATTENTION_MMA_ROWS * LAUNCH_WARPS, /* a block's own rows */
    ATTENTION_MMA_TILE = 64,                               /* others in shared memory */
    ATTENTION_MMA_PARTS = ATTENTION_MMA_TILE / ATTENTION_MMA_ROWS,
    ATTENTION_MMA_HEAD_DIM_MAX = 128,
};

/* Other rows. Eight more columns, so that the eight rows that are loaded at once are in different
 * banks. */
template <int D> struct alignas(16) attention_mma_tile {
    uint16_t x[ATTENTION_MMA_TILE][D + 8];
};

static __device__ inline int attention_mma_lane(void)
{
    return (int)(threadIdx.x % 32);
}

/* A fragment of a product has rows g and g + 8, and columns 2t and 2t + 1. */
static __device__ inline int attention_mma_row(int i)
{
    return attention_mma_lane() / 4 + i / 2 * 8;
}

static __device__ inline int attention_mma_col(int i)
{
    return attention_mma_lane() % 4 * 2 + i % 2;
}

/* The first of the warp's own rows. */
static __device__ inline int64_t attention_mma_first(const struct attention_rows *own)
{
    return own->first + threadIdx.x / 32 * ATTENTION_MMA_ROWS;
}

/* ---- which rows see which ---- */

/* Whether any of 16 queries sees any of 16 keys. */
static __device__ inline bool attention_mma_any(const struct attention *a,
                                                const struct attention_rows *q, int64_t query,
                                                int64_t key)
{
    int64_t last = query + ATTENTION_MMA_ROWS < q->rows ? query + ATTENTION_MMA_ROWS : q->rows;

    return query < q->rows && attention_seen(a, last - 1) > key &&
           attention_first(a, query) < key + ATTENTION_MMA_ROWS;
}

/* Whether each of 16 queries sees each of 16 keys. */
static __device__ inline bool attention_mma_all(const struct attention *a,
                                                const struct attention_rows *q, int64_t query,
                                                int64_t key)
{
    int64_t last = query + ATTENTION_MMA_ROWS - 1;

    return last < q->rows && attention_seen(a, query) >= key + ATTENTION_MMA_ROWS &&
           attention_first(a, last) <= key;
}

/* ---- loads ---- */

/* Load rows first, first + 1, ... into a tile; 0 outside of the rows and of the head. All threads
 * of the block call it. */
template <int D>
static __device__ void attention_mma_load(struct attention_mma_tile<D> *t,
                                          const struct attention *a, const void *x, int64_t ld,
                                          const struct attention_rows &rows, int64_t first)
{
    enum { AT_ONCE = 8 };

    for (int i = (int)threadIdx.x; i < ATTENTION_MMA_TILE * D / AT_ONCE; i += LAUNCH_THREADS) {
        int r = i / (D / AT_ONCE), c = i % (D / AT_ONCE) * AT_ONCE;
        int64_t row = first + r;
        const uint16_t *from = static_cast<const uint16_t *>(x) + (rows.at + row) * ld + rows.col;
        uint4 loaded = {};

        if (row < rows.rows && c < a->head_dim)
            loaded = *reinterpret_cast<const uint4 *>(from + c);
        *reinterpret_cast<uint4 *>(&t->x[r][c]) = loaded;
    }
}

/* Load the warp's own rows as fragments: own[k] has columns 16 k .. 16 k + 15. */
template <int D>
static __device__ void attention_mma_load_own(uint32_t (*own)[4], const struct attention *a,
                                              const void *x, int64_t ld,
                                              const struct attention_rows &rows)
{
    const int64_t first = attention_mma_first(&rows);

#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t row = first + attention_mma_row(i % 2 * 2);
            int col = 16 * k + attention_mma_col(0) + i / 2 * 8;
            const uint16_t *from =
                static_cast<const uint16_t *>(x) + (rows.at + row) * ld + rows.col;

            own[k][i] = row < rows.rows && col < a->head_dim
                            ? *reinterpret_cast<const uint32_t *>(from + col)
                            : 0;
        }
}

/* ---- products ---- */

/* dots = the products of the warp's own rows with rows first .. first + 15 of a tile. dots[j] has
 * rows first + 8 j .. first + 8 j + 7, as columns. */
template <int D>
static __device__ void attention_mma_dots(float (*dots)[4], const uint32_t (*own)[4],
                                          const struct attention_mma_tile<D> &t, int first,
                                          int64_t head_dim)
{
    const int lane = attention_mma_lane();
    const uint16_t *row = &t.x[first + lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];

#pragma unroll
    for (int i = 0; i < 8; i++)
        dots[i / 4][i % 4] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t b[4];

        if (16 * k >= head_dim)
            break;
        mma_load(b, row + 16 * k);
        mma_add(dots[0], own[k], b);
        mma_add(dots[1], own[k], b + 2);
    }
}

/* sums += weights times rows first .. first + 15 of a tile. weights are as attention_mma_dots has
 * them, and are rounded to bf16. sums[j] has columns 8 j .. 8 j + 7. */
template <int D>
static __device__ void attention_mma_sum(float (*sums)[4], const float (*weights)[4],
                                         const struct attention_mma_tile<D> &t, int first,
                                         int64_t head_dim)
{
    const int lane = attention_mma_lane();
    const uint16_t *row = &t.x[first + lane / 8 % 2 * 8 + lane % 8][lane / 16 * 8];
    uint32_t a[4], b[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = mma_pack(weights[i / 2][i % 2 * 2], weights[i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        if (16 * k >= head_dim)
            break;
        mma_load_transposed(b, row + 16 * k);
        mma_add(sums[2 * k], a, b);
        mma_add(sums[2 * k + 1], a, b + 2);
    }
}

#endif
