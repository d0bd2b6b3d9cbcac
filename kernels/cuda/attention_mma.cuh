/*
 * kernels/cuda/attention_mma.cuh - what the kernels of attention_mma_forward.cu and
 * attention_mma_backward.cu share: the two products on tensor cores, of a block's own rows with a
 * tile of others.
 *
 * A block has 128 rows of its own, and a warp 16 M of them, in registers, as fragments (mma.cuh).
 * The other rows are in shared memory, and a warp takes 16 of them at a time. While a block
 * computes with two tiles of other rows, the next two are copied (async_copy.cuh). With M = 2 a
 * warp loads the other rows from shared memory half as often for the same products, where registers
 * suffice for that; a block then has half as many warps, and a processor two blocks. D is the
 * number of columns for which registers and shared memory are reserved; a head may have fewer. C is
 * the number of columns of a sum; where it is less than D, because registers do not suffice, a
 * block computes the sum in passes, each with all products of rows again.
 */
#ifndef KERNELS_CUDA_ATTENTION_MMA_CUH
#define KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/attention_run.cuh"
#include "kernels/cuda/instruction.cuh"
#include "kernels/cuda/mma.cuh"

enum {
    ATTENTION_MMA_ROWS = 16, /* of a fragment, and of others at a time */
    ATTENTION_MMA_OWN = 128, /* a block's own rows */
    ATTENTION_MMA_HEAD_DIM_MAX = 256,
};

/* Other rows in shared memory, which has 48 KiB for four tiles, and registers for the scores of
 * one. Eight more columns, so that the eight rows that are loaded at once are in different banks.
 */
template <int D, int M> struct alignas(16) attention_mma_tile {
    enum { ROWS = 4096 / D / M, PARTS = ROWS / ATTENTION_MMA_ROWS };
    uint16_t x[ROWS][D + 8];

    /* Copies to it are complete. */
    static __device__ void arrived(void)
    {
    }
};

/* The same keys and values. */
template <typename T> struct attention_key_tiles {
    enum { ROWS = T::ROWS };
    T keys, values;
};

template <int D, int M>
using attention_mma_key_tiles = attention_key_tiles<attention_mma_tile<D, M>>;

/* The columns D for which registers and shared memory are reserved. */
static inline int attention_mma_columns(const struct attention *a)
{
    return a->cap > 0 || a->head_dim > 128 ? 256 : a->head_dim > 64 ? 128 : 64;
}

/* The kernels of wide heads. They keep less in registers, and only they know caps of scores, for
 * which they compute narrow heads too. */
template <int D> static __host__ __device__ constexpr bool attention_mma_wide(void)
{
    return D > 128;
}

/* The score of a product, as a multiple of attention_mma_unit. Scores of narrow heads are the
 * products themselves, so that scaling costs nothing: it is a part of the exponent (Dao 2023). */
template <int D>
static __device__ inline float attention_mma_score(const struct attention &a, float dot)
{
    return attention_mma_wide<D>() ? attention_score(&a, dot) : dot;
}

template <int D> static __device__ inline float attention_mma_unit(const struct attention &a)
{
    return attention_mma_wide<D>() ? 1.0f : a.scale;
}

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

/* The threads of a block. */
template <int M> static __host__ __device__ constexpr int attention_mma_threads(void)
{
    return ATTENTION_MMA_OWN / ATTENTION_MMA_ROWS / M * 32;
}

/* The first of the warp's own rows. */
template <int M> static __device__ inline int attention_mma_first(const struct attention_rows *own)
{
    return own->first + (int)(threadIdx.x / 32) * ATTENTION_MMA_ROWS * M;
}

/* ---- which rows see which ---- */

/* Whether any of `queries` queries sees any of `keys` keys. */
static __device__ inline bool attention_mma_any(const struct attention *a,
                                                const struct attention_rows *q, int query,
                                                int queries, int key, int keys)
{
    int last = query + queries < q->rows ? query + queries : q->rows;

    return query < q->rows && attention_seen(a, last - 1) > key &&
           attention_first(a, query) < key + keys;
}

/* Whether each of `queries` queries sees each of `keys` keys. */
static __device__ inline bool attention_mma_all(const struct attention *a,
                                                const struct attention_rows *q, int query,
                                                int queries, int key, int keys)
{
    int last = query + queries - 1;

    return last < q->rows && attention_seen(a, query) >= key + keys &&
           attention_first(a, last) <= key;
}

/* Whether that is so of the warp's own rows and a whole tile of others, of heads with all D
 * columns. Then a tile is FULL, and its products test nothing, so that they are one sequence of
 * instructions, in which the next loads do not wait for products. Most tiles are full. Wide heads
 * do not distinguish them, because registers do not suffice. */
template <int D>
static __device__ inline bool attention_mma_full(const struct attention *a,
                                                 const struct attention_rows *q, int query,
                                                 int queries, int key, int keys)
{
    return !attention_mma_wide<D>() && a->head_dim == D &&
           attention_mma_all(a, q, query, queries, key, keys);
}

/* f(k) for the columns 16 k .. 16 k + 15 of N times 16 that a head with so many columns has. It is
 * usual that it has all, and then nothing is tested; for wide heads registers do not suffice for
 * that. */
template <int D, int N, bool FULL, typename F>
static __device__ inline void attention_mma_steps(int columns, F f)
{
    const bool all = FULL || (!attention_mma_wide<D>() && columns >= 16 * N);

    if (all)
#pragma unroll
        for (int k = 0; k < N; k++)
            f(k);
    else
#pragma unroll
        for (int k = 0; k < N; k++)
            if (16 * k < columns)
                f(k);
}

/* ---- loads ---- */

/* Begin to copy rows first, first + 1, ... to a tile; 0 outside of the rows and of the head. All
 * threads of the block call it. */
template <int D, int M>
static __device__ void attention_tile_copy(struct attention_mma_tile<D, M> *t,
                                           const struct attention *a, const void *x, int64_t ld,
                                           const struct attention_rows &rows, int first)
{
    enum {
        AT_ONCE = 8,
        THREADS = D / AT_ONCE, /* that copy a row */
        STEP = attention_mma_threads<M>() / THREADS,
    };
    const int r = (int)threadIdx.x / THREADS, c = (int)threadIdx.x % THREADS * AT_ONCE;
    const uint16_t *from =
        static_cast<const uint16_t *>(x) + (rows.at + first + r) * ld + rows.col + c;

#pragma unroll
    for (int i = 0; i < attention_mma_tile<D, M>::ROWS; i += STEP) {
        const bool in = first + r + i < rows.rows && c < a->head_dim;

        async_copy_16(&t->x[r + i][c], from + i * ld, in);
    }
}

/* The same of keys and values, as a group. */
template <typename T>
static __device__ void attention_copy_keys(struct attention_key_tiles<T> *t,
                                           const struct attention *a,
                                           const struct attention_rows &k, int first)
{
    attention_tile_copy(&t->keys, a, a->k, a->ldk, k, first);
    attention_tile_copy(&t->values, a, a->v, a->ldv, k, first);
    async_copy_commit();
}

/* Wait for the copies to tiles T that are in flight; then all threads may use these. All of them
 * call it. */
template <typename T> static __device__ inline void attention_tiles_arrive(void)
{
    async_copy_wait<0>();
    T::arrived();
    __syncthreads(); /* all copies are complete, and nobody reads the other tiles any more */
}

/* Pass over the keys that a block's own queries see, of which there is one at least. For each tile
 * of them compute(tiles, n) is called, n the first key; meanwhile() once, while the first tile is
 * copied as the last group. All threads of the block call it. */
template <typename T, typename F, typename G>
static __device__ void attention_for_keys(const struct attention *a, const struct attention_rows &q,
                                          struct attention_key_tiles<T> *tiles, F compute,
                                          G meanwhile)
{
    enum { ROWS = T::ROWS };
    const struct attention_rows k = attention_keys_of(a, &q);
    int n = attention_first_tile(a, &q, ROWS);

    __syncthreads(); /* tiles of an earlier pass may still be read */
    if (n < k.rows)  /* as always; without the test sm_100's compiler spills registers */
        attention_copy_keys(&tiles[0], a, k, n);
    meanwhile();
    for (int now = 0; n < k.rows; n += ROWS, now ^= 1) {
        attention_tiles_arrive<T>();
        if (n + ROWS < k.rows)
            attention_copy_keys(&tiles[now ^ 1], a, k, n + ROWS);
        compute(tiles[now], n);
    }
}

template <typename T, typename F>
static __device__ void attention_for_keys(const struct attention *a, const struct attention_rows &q,
                                          struct attention_key_tiles<T> *tiles, F compute)
{
    attention_for_keys(a, q, tiles, compute, [] {});
}

/* Load columns 16 k .. 16 k + 15 of rows first .. first + 15 as a fragment. */
static __device__ inline void attention_mma_load_part(uint32_t *own, const struct attention *a,
                                                      const void *x, int64_t ld,
                                                      const struct attention_rows &rows, int first,
                                                      int k)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = first + attention_mma_row(i % 2 * 2);
        int col = 16 * k + attention_mma_col(0) + i / 2 * 8;
        const uint16_t *from = static_cast<const uint16_t *>(x) + (rows.at + row) * ld + rows.col;

        own[i] = row < rows.rows && col < a->head_dim
                     ? *reinterpret_cast<const uint32_t *>(from + col)
                     : 0;
    }
}

/* Load the warp's own rows. */
template <int D, int M>
static __device__ void attention_mma_load_own(uint32_t (*own)[D / 16][4], const struct attention *a,
                                              const void *x, int64_t ld,
                                              const struct attention_rows &rows)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            attention_mma_load_part(own[m][k], a, x, ld, rows,
                                    attention_mma_first<M>(&rows) + m * ATTENTION_MMA_ROWS, k);
}

/* ---- stores ---- */

/* Give the four lanes of a row what they can store in one piece. Before, a lane has two of eight
 * columns, as words[j], of each of four fragments j, which are side by side. Afterwards it has all
 * eight columns of fragment number t, its number among the four. All lanes call it. */
static __device__ inline void attention_mma_transpose(uint32_t (&words)[4])
{
    const int t = attention_mma_lane() % 4;

#pragma unroll
    for (int d = 1; d < 4; d *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & d)
                continue;
            const bool is_high = t & d;
            const uint32_t got = __shfl_xor_sync(0xffffffffu, is_high ? words[i] : words[i + d], d);

            words[i] = is_high ? got : words[i];
            words[i + d] = is_high ? words[i + d] : got;
        }
}

/* Store columns col .. col + C - 1 of half h of 16 own rows (0: rows g, 1: rows g + 8) as
 * bf16, 16 bytes at a time. `row` is where the lane's row of this head begins; NULL: it is none.
 * All lanes call it. */
template <int C>
static __device__ void attention_mma_store_row(uint16_t *row, const float (*x)[4], int h, float by,
                                               int col, int head_dim)
{
    const int t = attention_mma_lane() % 4;

#pragma unroll
    for (int j = 0; j < C / 8; j += 4) {
        const int at = col + 8 * (j + t);
        uint32_t words[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i] = instruction_bf16x2(x[j + i][2 * h] * by, x[j + i][2 * h + 1] * by);
        attention_mma_transpose(words);
        if (row && at < head_dim)
            *reinterpret_cast<uint4 *>(row + at) = { words[0], words[1], words[2], words[3] };
    }
}

/* ---- products ---- */

/* dots = the products of the warp's own rows with rows first .. first + 15 of a tile. dots[m][j]
 * has rows first + 8 j .. first + 8 j + 7, as columns. own(m, k) gives columns 16 k .. 16 k + 15 of
 * the own rows from 16 m on, as attention_mma_load_part loads them. */
template <int D, int M, bool FULL, typename F>
static __device__ void attention_mma_dots_of(float (*dots)[2][4], F own,
                                             const struct attention_mma_tile<D, M> &t, int first,
                                             int head_dim)
{
    const int lane = attention_mma_lane();
    const uint16_t *row = &t.x[first + lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];

#pragma unroll
    for (int i = 0; i < 8 * M; i++)
        dots[i / 8][i / 4 % 2][i % 4] = 0;
    attention_mma_steps<D, D / 16, FULL>(head_dim, [&](int k) {
        uint32_t b[4];

        mma_load(b, row + 16 * k);
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint32_t *a = own(m, k);

            mma_add(dots[m][0], a, b);
            mma_add(dots[m][1], a, b + 2);
        }
    });
}

/* The own rows are in registers. */
template <int D, int M, bool FULL>
static __device__ void attention_mma_dots(float (*dots)[2][4], const uint32_t (*own)[D / 16][4],
                                          const struct attention_mma_tile<D, M> &t, int first,
                                          int head_dim)
{
    attention_mma_dots_of<D, M, FULL>(
        dots, [own](int m, int k) { return own[m][k]; }, t, first, head_dim);
}

/* The own rows of x are loaded again: from the first cache, because other warps evict little. */
template <int D>
static __device__ void attention_mma_dots_loaded(float (*dots)[2][4], const struct attention *a,
                                                 const void *x, int64_t ld,
                                                 const struct attention_rows &rows,
                                                 const struct attention_mma_tile<D, 1> &t,
                                                 int first)
{
    uint32_t part[4];

    attention_mma_dots_of<D, 1, false>(
        dots,
        [&](int, int k) {
            attention_mma_load_part(part, a, x, ld, rows, attention_mma_first<1>(&rows), k);
            return const_cast<const uint32_t *>(part);
        },
        t, first, (int)a->head_dim);
}

/* sums += weights times columns col .. col + C - 1 of rows first .. first + 15 of a tile. weights
 * are as attention_mma_dots has them, and are rounded to bf16. sums[m][j] has eight columns from
 * col + 8 j. */
template <int C, int D, int M, bool FULL>
static __device__ void attention_mma_sum(float (*sums)[C / 8][4], const float (*weights)[2][4],
                                         const struct attention_mma_tile<D, M> &t, int first,
                                         int col, int head_dim)
{
    const int lane = attention_mma_lane();
    const uint16_t *row = &t.x[first + lane / 8 % 2 * 8 + lane % 8][col + lane / 16 * 8];
    uint32_t a[M][4];

#pragma unroll
    for (int i = 0; i < 4 * M; i++) {
        const float *w = weights[i / 4][i / 2 % 2];

        a[i / 4][i % 4] = instruction_bf16x2(w[i % 2 * 2], w[i % 2 * 2 + 1]);
    }
    attention_mma_steps<D, C / 16, FULL>(head_dim - col, [&](int k) {
        uint32_t b[4];

        mma_load_transposed(b, row + 16 * k);
#pragma unroll
        for (int m = 0; m < M; m++) {
            mma_add(sums[m][2 * k], a[m], b);
            mma_add(sums[m][2 * k + 1], a[m], b + 2);
        }
    });
}

#endif
