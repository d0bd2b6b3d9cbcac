/*
 * kernels/cuda/attention_gradient.cuh - what the backward kernels of attention_mma_backward.cu and
 * attention_wgmma_backward.cu share: what they know of queries, the order in which they pass over
 * them, and how gradients in fragments are stored.
 */
#ifndef KERNELS_CUDA_ATTENTION_GRADIENT_CUH
#define KERNELS_CUDA_ATTENTION_GRADIENT_CUH

#include "kernels/cuda/attention_mma.cuh"

/* Of a query: the log-sum-exp of its scores times log2 e, and delta (attention_delta_kernel). */
struct attention_query {
    float lse2, delta;
};

template <int D> static __device__ inline float gradient_unit(const struct attention &a)
{
    return attention_mma_wide<D>() ? 1.0f : a.scale;
}

/* Store or add two neighbours. */
static __device__ inline void store_pair(const struct attention_backward &g, float *to, float x,
                                         float y)
{
    float2 *both = reinterpret_cast<float2 *>(to);
    float2 old = g.of.merge ? *both : float2{ 0, 0 };

    *both = { old.x + x, old.y + y };
}

/* Store or add columns col .. col + C - 1 of a gradient of rows first .. first + 15, by * x. */
template <int C>
static __device__ void mma_gradient_store(const struct attention_backward &g, void *to, int64_t ld,
                                          const struct attention_rows &rows, int first,
                                          const float (*x)[4], float by, int col)
{
    const int head_dim = (int)g.of.head_dim;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first + attention_mma_row(2 * h);
        const int64_t at = (rows.at + row) * ld + rows.col;
        const bool in = row < rows.rows;

        if (g.type == DTYPE_BF16) {
            attention_mma_store_row<C>(in ? static_cast<uint16_t *>(to) + at : nullptr, x, h, by,
                                       col, head_dim);
            continue;
        }
#pragma unroll
        for (int j = 0; j < C / 8; j++)
            if (in && col + 8 * j < head_dim)
                store_pair(g, static_cast<float *>(to) + at + col + 8 * j + attention_mma_col(0),
                           by * x[j][2 * h], by * x[j][2 * h + 1]);
    }
}

/* Of the warp's own queries of a lane: to[m] is of rows 16 m + g and 16 m + g + 8. */
template <int M>
static __device__ void load_queries(struct attention_query (*to)[2], const struct attention &a,
                                    const struct attention_rows &q, const float *delta)
{
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        int row =
            attention_mma_first<M>(&q) + i / 2 * ATTENTION_MMA_ROWS + attention_mma_row(i % 2 * 2);
        bool in = row < q.rows;

        to[i / 2][i % 2] = { in ? a.lse[q.lse_at + row] * INSTRUCTION_LOG2_E : 0,
                             in ? delta[q.lse_at + row] : 0 };
    }
}

/* Queries in shared memory, their d_out, lse and delta. */
template <typename T> struct attention_query_tiles {
    enum { ROWS = T::ROWS };
    T queries, d_outs;
    float lse[ROWS], delta[ROWS];
};

template <int D, int M>
using attention_mma_query_tiles = attention_query_tiles<attention_mma_tile<D, M>>;

/* Begin to copy queries first, first + 1, ..., as a group. All threads of the block call it. */
template <typename T>
static __device__ void copy_queries(struct attention_query_tiles<T> *t,
                                    const struct attention_backward &g, const float *delta,
                                    const struct attention_rows &q, int first)
{
    enum { ROWS = T::ROWS };
    const struct attention *a = &g.of;
    const int r = (int)threadIdx.x % ROWS;
    const bool in = first + r < q.rows;
    const int64_t at = q.lse_at + (in ? first + r : 0);

    attention_tile_copy(&t->queries, a, a->q, a->ldq, q, first);
    attention_tile_copy(&t->d_outs, a, g.d_out, a->ldo, q, first);
    if (threadIdx.x < ROWS)
        async_copy_4(&t->lse[r], a->lse + at, in);
    else if (threadIdx.x < 2 * ROWS)
        async_copy_4(&t->delta[r], delta + at, in);
    async_copy_commit();
}

/* A tile of the queries that see a block's own keys. They are those of several heads. */
struct attention_query_place {
    int head, n;
};

/* The tile after `at`, which has `rows` queries. Those of a head end before `end`. */
static __device__ struct attention_query_place next_place(struct attention_query_place at, int rows,
                                                          int begin, int end)
{
    return at.n + rows < end ? attention_query_place{ at.head, at.n + rows }
                             : attention_query_place{ at.head + 1, begin };
}

/* Pass over the queries that see a block's own keys, as attention_for_keys does over keys.
 * compute(tiles, q, n): queries n, n + 1, ... of q. */
template <typename T, typename F>
static __device__ void attention_for_queries(const struct attention_backward &g, const float *delta,
                                             const struct attention_rows &k,
                                             struct attention_query_tiles<T> *tiles, F compute)
{
    enum { ROWS = T::ROWS };
    const struct attention *a = &g.of;
    const int begin = a->keys ? 0 : k.first / ROWS * ROWS, end = attention_queries_end(a, &k);
    const int heads = begin < end ? (int)(a->heads / a->kv_heads) : 0;
    struct attention_query_place at = { 0, begin };

    __syncthreads(); /* tiles of an earlier pass may still be read */
    if (heads > 0)
        copy_queries(&tiles[0], g, delta, attention_queries_of(a, &k, 0), begin);
    for (int now = 0; at.head < heads; now ^= 1) {
        const struct attention_query_place next = next_place(at, ROWS, begin, end);

        attention_tiles_arrive<T>();
        if (next.head < heads)
            copy_queries(&tiles[now ^ 1], g, delta, attention_queries_of(a, &k, next.head), next.n);
        compute(tiles[now], attention_queries_of(a, &k, at.head), at.n);
        at = next;
    }
}

#endif
