/*
 * kernels/cuda/attention_mma.cu - attention in bf16 on tensor cores, with sums in f32: the kernels
 * of attention.cu, with products of fragments (mma.cuh). A block has 128 rows of its own and passes
 * over the others 64 at a time. Weights, and the gradients of scores, are rounded to bf16 before
 * they are multiplied, as in Dao 2023 (FlashAttention-2).
 */
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_run.cuh"

/* ---- forward ---- */

/* The softmax of a lane's rows over the keys so far. Half h is row g + 8 h of the warp's own. */
template <int D> struct mma_softmax {
    float max[2], sum[2];
    float o[D / 8][4];
};

/* op over the four lanes that share a row. */
template <typename F> static __device__ inline float of_row(float x, F op)
{
    x = op(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return op(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* The scores of the warp's own queries and a tile of keys, of which the first is n: scaled, and
 * -INFINITY where a query does not see a key. */
template <int D>
static __device__ void scores_of(float (*s)[2][4], const struct attention &a,
                                 const struct attention_rows &q, const uint32_t (*own)[4],
                                 const struct attention_mma_tile<D> &keys, int64_t n)
{
    const int64_t first = attention_mma_first(&q);

#pragma unroll
    for (int p = 0; p < ATTENTION_MMA_PARTS; p++) {
        int64_t key = n + p * ATTENTION_MMA_ROWS;
        bool any = attention_mma_any(&a, &q, first, key), all = any;

        if (any) {
            attention_mma_dots<D>(s[p], own, keys, p * ATTENTION_MMA_ROWS, a.head_dim);
            all = attention_mma_all(&a, &q, first, key);
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool sees = all || (any && attention_sees(&a, first + attention_mma_row(i),
                                                          key + 8 * j + attention_mma_col(i)));

                s[p][j][i] = sees ? s[p][j][i] * a.scale : -INFINITY;
            }
    }
}

/* Take a tile of scores: they become weights, and what came before is scaled. */
template <int D> static __device__ void softmax_add(struct mma_softmax<D> *t, float (*s)[2][4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = -INFINITY, sum = 0;

#pragma unroll
        for (int i = 0; i < 4 * ATTENTION_MMA_PARTS; i++)
            most = fmaxf(most, s[i / 4][i / 2 % 2][2 * h + i % 2]);
        most = fmaxf(t->max[h], of_row(most, [](float x, float y) { return fmaxf(x, y); }));
        float base = most == -INFINITY ? 0 : most, before = expf(t->max[h] - base);

#pragma unroll
        for (int i = 0; i < 4 * ATTENTION_MMA_PARTS; i++) {
            float *x = &s[i / 4][i / 2 % 2][2 * h + i % 2];

            *x = expf(*x - base);
            sum += *x;
        }
        t->sum[h] = t->sum[h] * before + of_row(sum, [](float x, float y) { return x + y; });
        t->max[h] = most;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            t->o[j][2 * h] *= before;
            t->o[j][2 * h + 1] *= before;
        }
    }
}

/* Store a row's elements at `at` and at + 1, or merge them into a.sum. */
static __device__ inline void store_pair(const struct attention &a, int64_t at, const float *o,
                                         const struct attention_merge &m)
{
    float x = o[0] * m.by, y = o[1] * m.by;

    if (!a.sum) {
        *reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(a.out) + at) = mma_pack(x, y);
        return;
    }
    a.sum[at] = a.merge ? x + m.by_old * a.sum[at] : x;
    a.sum[at + 1] = a.merge ? y + m.by_old * a.sum[at + 1] : y;
}

template <int D>
static __device__ void mma_forward_store(const struct attention &a, const struct attention_rows &q,
                                         const struct mma_softmax<D> &t)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int64_t row = attention_mma_first(&q) + attention_mma_row(2 * h);
        bool in = row < q.rows;
        float *kept = a.lse + q.lse_at + row;
        float before = in && a.merge ? *kept : -INFINITY;
        struct attention_merge m = attention_merge_of(&a, t.max[h], t.sum[h], before);

        __syncwarp(); /* all lanes have read lse */
        if (!in)
            continue;
        if (attention_mma_col(0) == 0)
            *kept = m.lse;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            int64_t at = (q.at + row) * a.ldo + q.col + 8 * j + attention_mma_col(0);

            if (8 * j < a.head_dim)
                store_pair(a, at, &t.o[j][2 * h], m);
        }
    }
}

template <int D>
__global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    attention_mma_forward_kernel(const __grid_constant__ struct attention a)
{
    __shared__ struct attention_mma_tile<D> keys, values;

    for (int64_t b = blockIdx.x; b < attention_query_blocks(&a, ATTENTION_MMA_OWN);
         b += gridDim.x) {
        const struct attention_rows q = attention_queries(&a, ATTENTION_MMA_OWN, b);
        const struct attention_rows k = attention_keys_of(&a, &q);
        struct mma_softmax<D> t = {
            { -INFINITY, -INFINITY }, {},
            {
            }
        };
        uint32_t own[D / 16][4];

        attention_mma_load_own<D>(own, &a, a.q, a.ldq, q);
        for (int64_t n = attention_first_tile(&a, &q, ATTENTION_MMA_TILE); n < k.rows;
             n += ATTENTION_MMA_TILE) {
            float s[ATTENTION_MMA_PARTS][2][4];

            __syncthreads(); /* the tiles may still be read */
            attention_mma_load<D>(&keys, &a, a.k, a.ldk, k, n);
            attention_mma_load<D>(&values, &a, a.v, a.ldv, k, n);
            __syncthreads();
            scores_of<D>(s, a, q, own, keys, n);
            softmax_add<D>(&t, s);
#pragma unroll
            for (int p = 0; p < ATTENTION_MMA_PARTS; p++)
                if (attention_mma_any(&a, &q, attention_mma_first(&q), n + p * ATTENTION_MMA_ROWS))
                    attention_mma_sum<D>(t.o, s[p], values, p * ATTENTION_MMA_ROWS, a.head_dim);
        }
        mma_forward_store<D>(a, q, t);
    }
}

/* ---- backward ---- */

/* The probability of a score, and the gradient of the score from that of the probability. */
static __device__ inline float probability(const struct attention &a, float s, float lse)
{
    return expf(s * a.scale - lse);
}

static __device__ inline float score_gradient(const struct attention &a, float p, float dp,
                                              float delta)
{
    return p * (dp - delta) * a.scale;
}

/* Store or add a warp's own rows of a gradient. */
template <int D>
static __device__ void mma_gradient_store(const struct attention &a, float *to, int64_t ld,
                                          const struct attention_rows &rows, const float (*x)[4])
{
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t row = attention_mma_first(&rows) + attention_mma_row(i);
            int64_t at = (rows.at + row) * ld + rows.col + 8 * j + attention_mma_col(i);

            if (row < rows.rows && 8 * j < a.head_dim)
                to[at] = a.merge ? to[at] + x[j][i] : x[j][i];
        }
}

template <int D>
__global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    attention_mma_dq_kernel(const __grid_constant__ struct attention_backward g, const float *delta)
{
    __shared__ struct attention_mma_tile<D> keys, values;
    const struct attention &a = g.of;

    for (int64_t b = blockIdx.x; b < attention_query_blocks(&a, ATTENTION_MMA_OWN);
         b += gridDim.x) {
        const struct attention_rows q = attention_queries(&a, ATTENTION_MMA_OWN, b);
        const struct attention_rows k = attention_keys_of(&a, &q);
        const int64_t first = attention_mma_first(&q);
        uint32_t own[D / 16][4], own_d_out[D / 16][4];
        float dq[D / 8][4] = {};

        attention_mma_load_own<D>(own, &a, a.q, a.ldq, q);
        attention_mma_load_own<D>(own_d_out, &a, g.d_out, a.ldo, q);
        for (int64_t n = attention_first_tile(&a, &q, ATTENTION_MMA_TILE); n < k.rows;
             n += ATTENTION_MMA_TILE) {
            __syncthreads(); /* the tiles may still be read */
            attention_mma_load<D>(&keys, &a, a.k, a.ldk, k, n);
            attention_mma_load<D>(&values, &a, a.v, a.ldv, k, n);
            __syncthreads();
#pragma unroll 1
            for (int p = 0; p < ATTENTION_MMA_TILE; p += ATTENTION_MMA_ROWS) {
                float s[2][4], dp[2][4];
                bool all = attention_mma_all(&a, &q, first, n + p);

                if (!attention_mma_any(&a, &q, first, n + p))
                    continue;
                attention_mma_dots<D>(s, own, keys, p, a.head_dim);
                attention_mma_dots<D>(dp, own_d_out, values, p, a.head_dim);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    int64_t row = first + attention_mma_row(i % 4);
                    int64_t key = n + p + i / 4 * 8 + attention_mma_col(i);
                    bool sees = all || (row < q.rows && attention_sees(&a, row, key));
                    float *x = &s[i / 4][i % 4];

                    *x = sees ? score_gradient(a, probability(a, *x, a.lse[q.lse_at + row]),
                                               dp[i / 4][i % 4], delta[q.lse_at + row])
                              : 0;
                }
                attention_mma_sum<D>(dq, s, keys, p, a.head_dim);
            }
        }
        mma_gradient_store<D>(a, g.dq, g.lddq, q, dq);
    }
}

/* Of 16 queries, from `query`, and the warp's own keys: the products s of keys and queries become
 * the weights, and the products dp of values and d_out the gradients of the scores. */
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

        if (all || (row < q.rows && attention_sees(&a, row, key))) {
            *x = probability(a, *x, a.lse[q.lse_at + row]);
            *dx = score_gradient(a, *x, *dx, delta[q.lse_at + row]);
        } else {
            *x = *dx = 0;
        }
    }
}

/* A block for rows of keys of a KV head; it passes over the queries of all heads that read it. With
 * DK it computes dk, with DV dv. Both at once share a product, where registers suffice. */
template <int D, bool DK, bool DV>
__global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    attention_mma_dkv_kernel(const __grid_constant__ struct attention_backward g,
                             const float *delta)
{
    __shared__ struct attention_mma_tile<D> queries, d_outs;
    const struct attention &a = g.of;

    for (int64_t b = blockIdx.x; b < attention_key_blocks(&a, ATTENTION_MMA_OWN); b += gridDim.x) {
        const struct attention_rows k = attention_own_keys(&a, ATTENTION_MMA_OWN, b);
        uint32_t own[D / 16][4], own_values[DK ? D / 16 : 1][4];
        float dk[DK ? D / 8 : 1][4] = {}, dv[DV ? D / 8 : 1][4] = {};

        attention_mma_load_own<D>(own, &a, a.k, a.ldk, k);
        if constexpr (DK)
            attention_mma_load_own<D>(own_values, &a, a.v, a.ldv, k);
        for (int64_t head = 0; head < a.heads / a.kv_heads; head++) {
            const struct attention_rows q = attention_queries_of(&a, &k, head);
            int64_t n = a.keys ? 0 : k.first / ATTENTION_MMA_TILE * ATTENTION_MMA_TILE;

            for (int64_t end = attention_queries_end(&a, &k); n < end; n += ATTENTION_MMA_TILE) {
                __syncthreads(); /* the tiles may still be read */
                attention_mma_load<D>(&queries, &a, a.q, a.ldq, q, n);
                attention_mma_load<D>(&d_outs, &a, g.d_out, a.ldo, q, n);
                __syncthreads();
#pragma unroll 1
                for (int p = 0; p < ATTENTION_MMA_TILE; p += ATTENTION_MMA_ROWS) {
                    float s[2][4], dp[2][4] = {};

                    if (!attention_mma_any(&a, &q, n + p, attention_mma_first(&k)))
                        continue;
                    attention_mma_dots<D>(s, own, queries, p, a.head_dim);
                    if constexpr (DK)
                        attention_mma_dots<D>(dp, own_values, d_outs, p, a.head_dim);
                    weights_and_gradients(a, q, k, n + p, delta, s, dp);
                    if constexpr (DV)
                        attention_mma_sum<D>(dv, s, d_outs, p, a.head_dim);
                    if constexpr (DK)
                        attention_mma_sum<D>(dk, dp, queries, p, a.head_dim);
                }
            }
        }
        if constexpr (DK)
            mma_gradient_store<D>(a, g.dk, g.lddk, k, dk);
        if constexpr (DV)
            mma_gradient_store<D>(a, g.dv, g.lddv, k, dv);
    }
}

/* ---- launches ---- */

/* Rows are loaded 16 bytes at a time. */
static bool is_wide(const void *x, int64_t ld)
{
    return (uintptr_t)x % 16 == 0 && ld % 8 == 0;
}

bool attention_mma_fits(const struct attention *a)
{
    return a->type == DTYPE_BF16 && !(a->cap > 0) && a->head_dim % 8 == 0 &&
           a->head_dim <= ATTENTION_MMA_HEAD_DIM_MAX && is_wide(a->q, a->ldq) &&
           is_wide(a->k, a->ldk) && is_wide(a->v, a->ldv) && is_wide(a->out, a->ldo);
}

void attention_mma_forward(struct device_queue *q, const struct attention *a)
{
    int64_t blocks = attention_query_blocks(a, ATTENTION_MMA_OWN);

    if (a->head_dim <= 64)
        launch_rows(q, "attention", blocks, attention_mma_forward_kernel<64>, *a);
    else
        launch_rows(q, "attention", blocks, attention_mma_forward_kernel<128>, *a);
}

void attention_mma_backward(struct device_queue *q, const struct attention_backward *g,
                            const float *delta)
{
    static const char what[] = "the gradient of attention";
    int64_t queries = attention_query_blocks(&g->of, ATTENTION_MMA_OWN);
    int64_t keys = attention_key_blocks(&g->of, ATTENTION_MMA_OWN);

    if (g->of.head_dim <= 64) {
        launch_rows(q, what, queries, attention_mma_dq_kernel<64>, *g, delta);
        launch_rows(q, what, keys, attention_mma_dkv_kernel<64, true, true>, *g, delta);
    } else {
        launch_rows(q, what, queries, attention_mma_dq_kernel<128>, *g, delta);
        launch_rows(q, what, keys, attention_mma_dkv_kernel<128, true, false>, *g, delta);
        launch_rows(q, what, keys, attention_mma_dkv_kernel<128, false, true>, *g, delta);
    }
}
