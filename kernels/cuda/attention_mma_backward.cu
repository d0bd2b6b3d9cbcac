/*
 * kernels/cuda/attention_mma_backward.cu - the gradients of attention in bf16 on tensor cores: the
 * backward kernels of attention.cu, with products of fragments (mma.cuh).
 */
#include "kernels/cuda/attention_mma.cuh"

/* The probability of a product, and the gradient of the product from that of the probability. */
template <int D>
static __device__ inline void probability(const struct attention &a, float *dot, float *dp,
                                          float lse, float delta)
{
    const float score = attention_mma_score<D>(a, *dot), p = expf(score - lse);

    *dot = p;
    *dp =
        p * (*dp - delta) * (attention_mma_wide<D>() ? attention_score_slope(&a, score) : a.scale);
}

/* Store or add columns col .. col + C - 1 of a warp's own rows of a gradient. */
template <int C>
static __device__ void mma_gradient_store(const struct attention &a, float *to, int64_t ld,
                                          const struct attention_rows &rows, const float (*x)[4],
                                          int col)
{
#pragma unroll
    for (int j = 0; j < C / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t row = attention_mma_first(&rows) + attention_mma_row(i);
            int64_t at = (rows.at + row) * ld + rows.col + col + 8 * j + attention_mma_col(i);

            if (row < rows.rows && col + 8 * j < a.head_dim)
                to[at] = a.merge ? to[at] + x[j][i] : x[j][i];
        }
}

/* The warp's own queries and 16 keys, from `key`: the products s become probabilities, and the
 * products dp of d_out and values the gradients of the products s. */
template <int D>
static __device__ void query_gradients(const struct attention &a, const struct attention_rows &q,
                                       int64_t key, const float *delta, float (*s)[4],
                                       float (*dp)[4])
{
    const int64_t first = attention_mma_first(&q);
    const bool all = attention_mma_all(&a, &q, first, key);

#pragma unroll
    for (int i = 0; i < 8; i++) {
        int64_t row = first + attention_mma_row(i % 4);
        float *dx = &dp[i / 4][i % 4];

        if (all ||
            (row < q.rows && attention_sees(&a, row, key + i / 4 * 8 + attention_mma_col(i))))
            probability<D>(a, &s[i / 4][i % 4], dx, a.lse[q.lse_at + row], delta[q.lse_at + row]);
        else
            *dx = 0;
    }
}

/* Columns col .. col + C - 1 of dq of the block's own rows. All threads of the block call it. */
template <int D, int C>
static __device__ void dq_pass(const struct attention_backward &g, const float *delta,
                               const struct attention_rows &q, const uint32_t (*own)[4],
                               const uint32_t (*own_d_out)[4], struct attention_mma_tile<D> *keys,
                               struct attention_mma_tile<D> *values, int col)
{
    enum { ROWS = attention_mma_tile<D>::ROWS };
    const struct attention &a = g.of;
    const struct attention_rows k = attention_keys_of(&a, &q);
    float dq[C / 8][4] = {};

    for (int64_t n = attention_first_tile(&a, &q, ROWS); n < k.rows; n += ROWS) {
        __syncthreads(); /* the tiles may still be read */
        attention_mma_load<D>(keys, &a, a.k, a.ldk, k, n);
        attention_mma_load<D>(values, &a, a.v, a.ldv, k, n);
        __syncthreads();
#pragma unroll 1
        for (int p = 0; p < ROWS; p += ATTENTION_MMA_ROWS) {
            float s[2][4], dp[2][4];

            if (!attention_mma_any(&a, &q, attention_mma_first(&q), n + p))
                continue;
            attention_mma_dots<D>(s, own, *keys, p, a.head_dim);
            if constexpr (attention_mma_wide<D>())
                attention_mma_dots_loaded<D>(dp, &a, g.d_out, a.ldo, q, *values, p);
            else
                attention_mma_dots<D>(dp, own_d_out, *values, p, a.head_dim);
            query_gradients<D>(a, q, n + p, delta, s, dp);
            attention_mma_sum<C, D>(dq, dp, *keys, p, col, a.head_dim);
        }
    }
    mma_gradient_store<C>(a, g.dq, g.lddq, q, dq, col);
}

template <int D, int C>
__global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    attention_mma_dq_kernel(const __grid_constant__ struct attention_backward g, const float *delta)
{
    __shared__ struct attention_mma_tile<D> keys, values;
    const struct attention &a = g.of;

    for (int64_t b = blockIdx.x; b < attention_query_blocks(&a, ATTENTION_MMA_OWN);
         b += gridDim.x) {
        const struct attention_rows q = attention_queries(&a, ATTENTION_MMA_OWN, b);
        uint32_t own[D / 16][4], own_d_out[attention_mma_wide<D>() ? 1 : D / 16][4];

        attention_mma_load_own<D>(own, &a, a.q, a.ldq, q);
        if constexpr (!attention_mma_wide<D>())
            attention_mma_load_own<D>(own_d_out, &a, g.d_out, a.ldo, q);
#pragma unroll 1
        for (int col = 0; col < D && col < a.head_dim; col += C)
            dq_pass<D, C>(g, delta, q, own, own_d_out, &keys, &values, col);
    }
}

/* Of 16 queries, from `query`, and the warp's own keys: the products s of keys and queries become
 * the weights, and the products dp of values and d_out the gradients of the products s. */
template <int D>
static __device__ void weights_and_gradients(const struct attention &a,
                                             const struct attention_rows &q,
                                             const struct attention_rows &k, int64_t query,
                                             const float *delta, float (*s)[4], float (*dp)[4])
{
    const int64_t first = attention_mma_first(&k);
    const bool all = attention_mma_all(&a, &q, query, first);

#pragma unroll
    for (int i = 0; i < 8; i++) {
        int64_t row = query + i / 4 * 8 + attention_mma_col(i);
        int64_t key = first + attention_mma_row(i % 4);
        float *x = &s[i / 4][i % 4], *dx = &dp[i / 4][i % 4];

        if (all || (row < q.rows && attention_sees(&a, row, key)))
            probability<D>(a, x, dx, a.lse[q.lse_at + row], delta[q.lse_at + row]);
        else
            *x = *dx = 0;
    }
}

/* What a block has of its own keys, and the tiles of queries. */
template <int D, bool DK> struct mma_own_keys {
    enum { VALUES = DK && !attention_mma_wide<D>() };
    uint32_t keys[D / 16][4], values[VALUES ? D / 16 : 1][4];
};

template <int D> struct mma_query_tiles {
    struct attention_mma_tile<D> queries, d_outs;
};

/* Columns col .. col + C - 1 of dk, with DK, and of dv, with DV, of the block's own rows. All
 * threads of the block call it. */
template <int D, int C, bool DK, bool DV>
static __device__ void dkv_pass(const struct attention_backward &g, const float *delta,
                                const struct attention_rows &k,
                                const struct mma_own_keys<D, DK> &own,
                                struct mma_query_tiles<D> *tiles, int col)
{
    enum { ROWS = attention_mma_tile<D>::ROWS };
    const struct attention &a = g.of;
    float dk[DK ? C / 8 : 1][4] = {}, dv[DV ? C / 8 : 1][4] = {};

    for (int64_t head = 0; head < a.heads / a.kv_heads; head++) {
        const struct attention_rows q = attention_queries_of(&a, &k, head);
        int64_t n = a.keys ? 0 : k.first / ROWS * ROWS;

        for (int64_t end = attention_queries_end(&a, &k); n < end; n += ROWS) {
            __syncthreads(); /* the tiles may still be read */
            attention_mma_load<D>(&tiles->queries, &a, a.q, a.ldq, q, n);
            attention_mma_load<D>(&tiles->d_outs, &a, g.d_out, a.ldo, q, n);
            __syncthreads();
#pragma unroll 1
            for (int p = 0; p < ROWS; p += ATTENTION_MMA_ROWS) {
                float s[2][4], dp[2][4] = {};

                if (!attention_mma_any(&a, &q, n + p, attention_mma_first(&k)))
                    continue;
                attention_mma_dots<D>(s, own.keys, tiles->queries, p, a.head_dim);
                if constexpr (mma_own_keys<D, DK>::VALUES)
                    attention_mma_dots<D>(dp, own.values, tiles->d_outs, p, a.head_dim);
                else if constexpr (DK)
                    attention_mma_dots_loaded<D>(dp, &a, a.v, a.ldv, k, tiles->d_outs, p);
                weights_and_gradients<D>(a, q, k, n + p, delta, s, dp);
                if constexpr (DV)
                    attention_mma_sum<C, D>(dv, s, tiles->d_outs, p, col, a.head_dim);
                if constexpr (DK)
                    attention_mma_sum<C, D>(dk, dp, tiles->queries, p, col, a.head_dim);
            }
        }
    }
    if constexpr (DK)
        mma_gradient_store<C>(a, g.dk, g.lddk, k, dk, col);
    if constexpr (DV)
        mma_gradient_store<C>(a, g.dv, g.lddv, k, dv, col);
}

/* A block for rows of keys of a KV head; it passes over the queries of all heads that read it. With
 * DK it computes dk, with DV dv. Both at once share a product, where registers suffice. */
template <int D, int C, bool DK, bool DV>
__global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    attention_mma_dkv_kernel(const __grid_constant__ struct attention_backward g,
                             const float *delta)
{
    __shared__ struct mma_query_tiles<D> tiles;
    const struct attention &a = g.of;

    for (int64_t b = blockIdx.x; b < attention_key_blocks(&a, ATTENTION_MMA_OWN); b += gridDim.x) {
        const struct attention_rows k = attention_own_keys(&a, ATTENTION_MMA_OWN, b);
        struct mma_own_keys<D, DK> own;

        attention_mma_load_own<D>(own.keys, &a, a.k, a.ldk, k);
        if constexpr (mma_own_keys<D, DK>::VALUES)
            attention_mma_load_own<D>(own.values, &a, a.v, a.ldv, k);
#pragma unroll 1
        for (int col = 0; col < D && col < a.head_dim; col += C)
            dkv_pass<D, C, DK, DV>(g, delta, k, own, &tiles, col);
    }
}

void attention_mma_backward(struct device_queue *q, const struct attention_backward *g,
                            const float *delta)
{
    static const char what[] = "the gradient of attention";
    int64_t queries = attention_query_blocks(&g->of, ATTENTION_MMA_OWN);
    int64_t keys = attention_key_blocks(&g->of, ATTENTION_MMA_OWN);

    switch (attention_mma_columns(&g->of)) {
    case 64:
        launch_rows(q, what, queries, attention_mma_dq_kernel<64, 64>, *g, delta);
        launch_rows(q, what, keys, attention_mma_dkv_kernel<64, 64, true, true>, *g, delta);
        break;
    case 128:
        launch_rows(q, what, queries, attention_mma_dq_kernel<128, 128>, *g, delta);
        launch_rows(q, what, keys, attention_mma_dkv_kernel<128, 128, true, false>, *g, delta);
        launch_rows(q, what, keys, attention_mma_dkv_kernel<128, 128, false, true>, *g, delta);
        break;
    default:
        launch_rows(q, what, queries, attention_mma_dq_kernel<256, 64>, *g, delta);
        launch_rows(q, what, keys, attention_mma_dkv_kernel<256, 64, true, false>, *g, delta);
        launch_rows(q, what, keys, attention_mma_dkv_kernel<256, 128, false, true>, *g, delta);
    }
}
