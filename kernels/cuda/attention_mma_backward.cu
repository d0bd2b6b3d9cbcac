/*
 * kernels/cuda/attention_mma_backward.cu - the gradients of attention in bf16 on tensor cores: the
 * backward kernels of attention.cu, with products of fragments (mma.cuh).
 */
#include "kernels/cuda/attention_gradient.cuh"

/* The probability of a product, and the gradient of the product from that of the probability: of
 * narrow heads without the scale, by which the sums are multiplied (gradient_unit). */
template <int D>
static __device__ inline void probability(const struct attention &a, float *dot, float *dp,
                                          const struct attention_query &q)
{
    const float score = attention_mma_score<D>(a, *dot);
    const float by = attention_mma_unit<D>(a) * INSTRUCTION_LOG2_E;
    const float p = instruction_exp2(fmaf(score, by, -q.lse2));

    *dot = p;
    *dp = p * (*dp - q.delta);
    if (attention_mma_wide<D>())
        *dp *= attention_score_slope(&a, score);
}

/* ---- dq ---- */

/* The warp's own queries and 16 keys, from `key`: the products s become probabilities, and the
 * products dp of d_out and values the gradients of the products s. */
template <int D, int M, bool FULL>
static __device__ void query_gradients(const struct attention &a, const struct attention_rows &q,
                                       int key, const struct attention_query (*own)[2],
                                       float (*s)[2][4], float (*dp)[2][4])
{
    enum { ROWS = ATTENTION_MMA_ROWS };
    const int first = attention_mma_first<M>(&q);
    const bool all = FULL || attention_mma_all(&a, &q, first, ROWS * M, key, ROWS);

#pragma unroll
    for (int i = 0; i < 8 * M; i++) {
        const int m = i / 8, j = i / 4 % 2, row = first + m * ROWS + attention_mma_row(i % 4);

        probability<D>(a, &s[m][j][i % 4], &dp[m][j][i % 4], own[m][i % 4 / 2]);
        if (!all && (row >= q.rows || !attention_sees(&a, row, key + j * 8 + attention_mma_col(i))))
            dp[m][j][i % 4] = 0;
    }
}

/* The block's own queries. */
template <int D, int M> struct mma_own_queries {
    uint32_t q[M][D / 16][4], d_out[M][attention_mma_wide<D>() ? 1 : D / 16][4];
    struct attention_query of[M][2];
};

/* Add to dq what 16 keys of a tile give, from its row p on. n is the key of row 0. */
template <int D, int C, int M, bool FULL>
static __device__ inline void add_keys(float (*dq)[C / 8][4], const struct attention_backward &g,
                                       const struct attention_rows &q,
                                       const struct mma_own_queries<D, M> &own,
                                       const attention_mma_key_tiles<D, M> &now, int n, int p,
                                       int col)
{
    const struct attention &a = g.of;
    float s[M][2][4], dp[M][2][4];

    attention_mma_dots<D, M, FULL>(s, own.q, now.keys, p, (int)a.head_dim);
    if constexpr (attention_mma_wide<D>())
        attention_mma_dots_loaded<D>(dp, &a, g.d_out, a.ldo, q, now.values, p);
    else
        attention_mma_dots<D, M, FULL>(dp, own.d_out, now.values, p, (int)a.head_dim);
    query_gradients<D, M, FULL>(a, q, n + p, own.of, s, dp);
    attention_mma_sum<C, D, M, FULL>(dq, dp, now.keys, p, col, (int)a.head_dim);
}

/* Columns col .. col + C - 1 of dq of the block's own rows. All threads of the block call it. */
template <int D, int C, int M>
static __device__ void dq_pass(const struct attention_backward &g, const struct attention_rows &q,
                               const struct mma_own_queries<D, M> &own,
                               attention_mma_key_tiles<D, M> *tiles, int col)
{
    enum { ROWS = attention_mma_tile<D, M>::ROWS, STEP = ATTENTION_MMA_ROWS };
    const struct attention &a = g.of;
    const int first = attention_mma_first<M>(&q);
    float dq[M][C / 8][4] = {};

    attention_for_keys(&a, q, tiles, [&](const attention_mma_key_tiles<D, M> &now, int n) {
        if (attention_mma_full<D>(&a, &q, first, STEP * M, n, ROWS))
#pragma unroll(M == 1 ? ROWS / STEP : 1)
            for (int p = 0; p < ROWS; p += STEP)
                add_keys<D, C, M, true>(dq, g, q, own, now, n, p, col);
        else
#pragma unroll 1
            for (int p = 0; p < ROWS; p += STEP)
                if (attention_mma_any(&a, &q, first, STEP * M, n + p, STEP))
                    add_keys<D, C, M, false>(dq, g, q, own, now, n, p, col);
    });
#pragma unroll
    for (int m = 0; m < M; m++)
        mma_gradient_store<C>(g, g.dq, g.lddq, q, first + m * STEP, dq[m], gradient_unit<D>(a),
                              col);
}

template <int D, int C, int M>
__global__ void __launch_bounds__(attention_mma_threads<M>(), M)
    attention_mma_dq_kernel(const __grid_constant__ struct attention_backward g, const float *delta)
{
    __shared__ attention_mma_key_tiles<D, M> tiles[2];
    const struct attention &a = g.of;
    const struct attention_rows q = attention_queries(&a, ATTENTION_MMA_OWN, blockIdx.x);
    struct mma_own_queries<D, M> own;

    attention_mma_load_own<D, M>(own.q, &a, a.q, a.ldq, q);
    if constexpr (!attention_mma_wide<D>())
        attention_mma_load_own<D, M>(own.d_out, &a, g.d_out, a.ldo, q);
    load_queries<M>(own.of, a, q, delta);
#pragma unroll 1
    for (int col = 0; col < D && col < a.head_dim; col += C)
        dq_pass<D, C, M>(g, q, own, tiles, col);
}

/* ---- dk and dv ---- */

/* Of 16 queries, from row p of the tile, and the warp's own keys: the products s of keys and
 * queries become the weights, and the products dp of values and d_out the gradients of the products
 * s. n is the query of row 0. */
template <int D, int M, bool FULL>
static __device__ void weights_and_gradients(const struct attention &a,
                                             const struct attention_rows &q,
                                             const struct attention_rows &k,
                                             const attention_mma_query_tiles<D, M> &t, int n, int p,
                                             float (*s)[2][4], float (*dp)[2][4])
{
    enum { ROWS = ATTENTION_MMA_ROWS };
    const int first = attention_mma_first<M>(&k);
    const bool all = FULL || attention_mma_all(&a, &q, n + p, ROWS, first, ROWS * M);

#pragma unroll
    for (int i = 0; i < 8 * M; i++) {
        const int m = i / 8, j = i / 4 % 2, row = p + j * 8 + attention_mma_col(i);
        const struct attention_query of = { t.lse[row] * INSTRUCTION_LOG2_E, t.delta[row] };

        probability<D>(a, &s[m][j][i % 4], &dp[m][j][i % 4], of);
        if (!all && (n + row >= q.rows ||
                     !attention_sees(&a, n + row, first + m * ROWS + attention_mma_row(i % 4))))
            s[m][j][i % 4] = dp[m][j][i % 4] = 0;
    }
}

/* What a block has of its own keys. */
template <int D, int M, bool DK> struct mma_own_keys {
    enum { VALUES = DK && !attention_mma_wide<D>() };
    uint32_t keys[M][D / 16][4], values[M][VALUES ? D / 16 : 1][4];
};

/* Columns col .. col + C - 1 of dk, with DK, and of dv, with DV, of the warp's own rows. */
template <int C, int M, bool DK, bool DV> struct mma_key_sums {
    float dk[M][DK ? C / 8 : 1][4], dv[M][DV ? C / 8 : 1][4];
};

/* Add what 16 queries of a tile give, from its row p on. n is the query of row 0. */
template <int D, int C, int M, bool DK, bool DV, bool FULL>
static __device__ inline void add_queries(struct mma_key_sums<C, M, DK, DV> *sums,
                                          const struct attention &a, const struct attention_rows &q,
                                          const struct attention_rows &k,
                                          const struct mma_own_keys<D, M, DK> &own,
                                          const attention_mma_query_tiles<D, M> &now, int n, int p,
                                          int col)
{
    float s[M][2][4], dp[M][2][4] = {};

    attention_mma_dots<D, M, FULL>(s, own.keys, now.queries, p, (int)a.head_dim);
    if constexpr (mma_own_keys<D, M, DK>::VALUES)
        attention_mma_dots<D, M, FULL>(dp, own.values, now.d_outs, p, (int)a.head_dim);
    else if constexpr (DK)
        attention_mma_dots_loaded<D>(dp, &a, a.v, a.ldv, k, now.d_outs, p);
    weights_and_gradients<D, M, FULL>(a, q, k, now, n, p, s, dp);
    if constexpr (DV)
        attention_mma_sum<C, D, M, FULL>(sums->dv, s, now.d_outs, p, col, (int)a.head_dim);
    if constexpr (DK)
        attention_mma_sum<C, D, M, FULL>(sums->dk, dp, now.queries, p, col, (int)a.head_dim);
}

/* The sums of the block's own rows. All threads of the block call it. */
template <int D, int C, int M, bool DK, bool DV>
static __device__ void dkv_pass(const struct attention_backward &g, const float *delta,
                                const struct attention_rows &k,
                                const struct mma_own_keys<D, M, DK> &own,
                                attention_mma_query_tiles<D, M> *tiles, int col)
{
    enum { ROWS = attention_mma_tile<D, M>::ROWS, STEP = ATTENTION_MMA_ROWS };
    const struct attention &a = g.of;
    const int first = attention_mma_first<M>(&k);
    struct mma_key_sums<C, M, DK, DV> sums = {
    };

    attention_for_queries(
        g, delta, k, tiles,
        [&](const attention_mma_query_tiles<D, M> &now, const struct attention_rows &q, int n) {
            if (attention_mma_full<D>(&a, &q, n, ROWS, first, STEP * M))
#pragma unroll
                for (int p = 0; p < ROWS; p += STEP)
                    add_queries<D, C, M, DK, DV, true>(&sums, a, q, k, own, now, n, p, col);
            else
#pragma unroll 1
                for (int p = 0; p < ROWS; p += STEP)
                    if (attention_mma_any(&a, &q, n + p, STEP, first, STEP * M))
                        add_queries<D, C, M, DK, DV, false>(&sums, a, q, k, own, now, n, p, col);
        });
#pragma unroll
    for (int m = 0; m < M; m++) {
        if constexpr (DK)
            mma_gradient_store<C>(g, g.dk, g.lddk, k, first + m * STEP, sums.dk[m],
                                  gradient_unit<D>(a), col);
        if constexpr (DV)
            mma_gradient_store<C>(g, g.dv, g.lddv, k, first + m * STEP, sums.dv[m], 1, col);
    }
}

/* A block for rows of keys of a KV head; it passes over the queries of all heads that read it. With
 * DK it computes dk, with DV dv. Both at once share a product, where registers suffice. */
template <int D, int C, int M, bool DK, bool DV>
__global__ void __launch_bounds__(attention_mma_threads<M>(), M)
    attention_mma_dkv_kernel(const __grid_constant__ struct attention_backward g,
                             const float *delta)
{
    __shared__ attention_mma_query_tiles<D, M> tiles[2];
    const struct attention &a = g.of;
    const struct attention_rows k = attention_own_keys(&a, ATTENTION_MMA_OWN, blockIdx.x);
    struct mma_own_keys<D, M, DK> own;

    attention_mma_load_own<D, M>(own.keys, &a, a.k, a.ldk, k);
    if constexpr (mma_own_keys<D, M, DK>::VALUES)
        attention_mma_load_own<D, M>(own.values, &a, a.v, a.ldv, k);
#pragma unroll 1
    for (int col = 0; col < D && col < a.head_dim; col += C)
        dkv_pass<D, C, M, DK, DV>(g, delta, k, own, tiles, col);
}

void attention_mma_backward(struct device_queue *q, const struct attention_backward *g,
                            const float *delta)
{
    static const char what[] = "the gradient of attention";
    int64_t queries = attention_query_blocks(&g->of, ATTENTION_MMA_OWN);
    int64_t keys = attention_key_blocks(&g->of, ATTENTION_MMA_OWN);

    switch (attention_mma_columns(&g->of)) {
    case 64:
        launch_each<attention_mma_threads<2>()>(q, what, queries,
                                                attention_mma_dq_kernel<64, 64, 2>, *g, delta);
        launch_each(q, what, keys, attention_mma_dkv_kernel<64, 64, 1, true, true>, *g, delta);
        break;
    case 128:
        launch_each(q, what, queries, attention_mma_dq_kernel<128, 128, 1>, *g, delta);
        launch_each(q, what, keys, attention_mma_dkv_kernel<128, 128, 1, true, false>, *g, delta);
        launch_each(q, what, keys, attention_mma_dkv_kernel<128, 128, 1, false, true>, *g, delta);
        break;
    default:
        launch_each(q, what, queries, attention_mma_dq_kernel<256, 64, 1>, *g, delta);
        launch_each(q, what, keys, attention_mma_dkv_kernel<256, 64, 1, true, false>, *g, delta);
        launch_each(q, what, keys, attention_mma_dkv_kernel<256, 128, 1, false, true>, *g, delta);
    }
}
