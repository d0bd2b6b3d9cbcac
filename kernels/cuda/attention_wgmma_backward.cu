/*
 * kernels/cuda/attention_wgmma_backward.cu - the backward kernels of attention.cu for Hopper, in
 * bf16, with products of warpgroups (wgmma.cuh). One kernel computes dq, and one dk and dv, as in
 * attention_mma_backward.cu. That of dq comes first and has d_out in shared memory, so it computes
 * delta (attention_delta_kernel), too: out is all that it reads for it.
 */
#include "kernels/cuda/attention_gradient.cuh"
#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/pack.cuh"

enum { SCORES = WGMMA_COLUMNS / 2 /* of a lane, in a tile */ };

/* ---- dq ---- */

/* What a block knows of a query: the log-sum-exp of its scores times log2 e, and that the keys that
 * it sees are from .. end - 1. */
struct own_query {
    float lse2;
    int from, end;
};

template <int D> struct dq_shared {
    attention_wgmma_own<D> queries, d_outs;
    struct attention_key_tiles<attention_wgmma_tile<D>> tiles[2];
    /* here, because registers do not suffice */
    struct own_query of[ATTENTION_MMA_OWN];
    float delta[ATTENTION_MMA_OWN];
};

/* Keep that where the lanes of a row read it. A barrier follows. */
template <int D>
static __device__ void keep_queries(struct dq_shared<D> *shared, const struct attention &a,
                                    const struct attention_rows &q)
{
    const struct attention_wgmma_seen seen = attention_wgmma_keys(a, q);

    for (int h = 0; h < 2 && attention_mma_col(0) == 0; h++) {
        const int row = attention_mma_first<1>(&q) + attention_mma_row(2 * h);
        struct own_query *of = &shared->of[row - q.first];

        of->lse2 = row < q.rows ? a.lse[q.lse_at + row] * INSTRUCTION_LOG2_E : 0;
        of->from = seen.from[h];
        of->end = seen.end[h];
    }
}

/* What a thread has copied of d_out, of out: in registers, because it is needed once. */
template <int D> struct own_out {
    struct pack_memory<uint16_t, PACK_BF16> x[ATTENTION_MMA_OWN / attention_wgmma_share<D>::STEP];
};

template <int D>
static __device__ __forceinline__ void load_out(struct own_out<D> *to, const struct attention &a,
                                                const struct attention_rows &q)
{
    enum { STEP = attention_wgmma_share<D>::STEP };
    const attention_wgmma_share<D> mine;
    const uint16_t *from = mine.from(a.out, a.ldo, q, q.first);

#pragma unroll
    for (int i = 0; i < ATTENTION_MMA_OWN / STEP; i++) {
        to->x[i] = {};
        if (q.first + mine.row + i * STEP < q.rows)
            to->x[i] = *reinterpret_cast<const struct pack_memory<uint16_t, PACK_BF16> *>(
                from + i * STEP * a.ldo);
    }
}

/* Keep delta, the sum over a row of d_out * out, when the thread's copies of d_out are complete. A
 * barrier follows. */
template <int D>
static __device__ __forceinline__ void keep_delta(struct dq_shared<D> *shared,
                                                  const struct own_out<D> &out)
{
    enum { STEP = attention_wgmma_share<D>::STEP };
    const attention_wgmma_share<D> mine;
    const uint16_t *d_out = mine.to(&shared->d_outs);

#pragma unroll
    for (int i = 0; i < ATTENTION_MMA_OWN / STEP; i++) {
        const struct pack<PACK_BF16> x = pack_load<PACK_BF16>(d_out, i * STEP * WGMMA_COLUMNS);
        const struct pack<PACK_BF16> y = pack_load<PACK_BF16>(out.x[i].x, 0);
        float sum = 0;

#pragma unroll
        for (int j = 0; j < PACK_BF16; j++)
            sum += x.x[j] * y.x[j];
        for (int d = mine.THREADS / 2; d > 0; d /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (mine.chunk == 0)
            shared->delta[mine.row + i * STEP] = sum;
    }
}

/* For the kernel of dk and dv. */
template <int D>
static __device__ void store_delta(float *delta, const struct dq_shared<D> &shared,
                                   const struct attention_rows &q)
{
    const int own = (int)threadIdx.x, row = q.first + own;

    if (own < ATTENTION_MMA_OWN && row < q.rows)
        delta[q.lse_at + row] = shared.delta[own];
}

/* Products of the warp's own queries and a tile of keys, from n, become probabilities: 0 where a
 * query does not see a key. of[0] is of the lane's first row, of[8] of its other one. */
template <int D>
static __device__ __forceinline__ void query_weights(float *s, const struct attention &a,
                                                     const struct attention_rows &q, int n,
                                                     const struct own_query *of)
{
    const int first = attention_mma_first<1>(&q);
    const float by = a.scale * INSTRUCTION_LOG2_E;

#pragma unroll
    for (int i = 0; i < SCORES; i++)
        s[i] = instruction_exp2(fmaf(s[i], by, -of[i % 4 / 2 * 8].lse2));
    if (!attention_mma_all(&a, &q, first, ATTENTION_MMA_ROWS, n, WGMMA_ROWS))
        attention_wgmma_hide<D>(s, { { of[0].from, of[8].from }, { of[0].end, of[8].end } }, n, 0);
}

/* Add what a tile of keys, from n, gives to dq. Two blocks on a processor run at different times;
 * where there is one, products run beside exponents. */
template <int D>
static __device__ __forceinline__ void add_keys(
    float *dq, const struct attention &a, const struct attention_rows &q,
    const struct dq_shared<D> &shared, int own, int row,
    const struct attention_key_tiles<attention_wgmma_tile<D>> &now, int n)
{
    enum { IS_AHEAD = D > 64 };
    const float *delta = &shared.delta[row];
    float s[SCORES], dp[SCORES];
    struct attention_wgmma_weights gradients;

    wgmma_fence();
    attention_wgmma_dots<D>(s, shared.queries, own, now.keys);
    wgmma_commit();
    if (IS_AHEAD) {
        attention_wgmma_dots<D>(dp, shared.d_outs, own, now.values);
        wgmma_commit();
    }
    wgmma_wait<IS_AHEAD>();
    wgmma_keep(s, SCORES);
    query_weights<D>(s, a, q, n, &shared.of[row]);
    if (!IS_AHEAD) {
        wgmma_fence();
        attention_wgmma_dots<D>(dp, shared.d_outs, own, now.values);
        wgmma_commit();
    }
    wgmma_wait<0>();
    wgmma_keep(dp, SCORES);
#pragma unroll
    for (int i = 0; i < SCORES; i++)
        s[i] *= dp[i] - delta[i % 4 / 2 * 8];
    attention_wgmma_pack(&gradients, s);
    wgmma_fence();
    attention_wgmma_sum<D>(dq, gradients, now.keys);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_keep(dq, D / 2);
}

template <int D>
__global__ void __launch_bounds__(LAUNCH_THREADS, D == 64 ? 2 : 1)
    attention_wgmma_dq_kernel(const __grid_constant__ struct attention_backward g, float *delta)
{
    if constexpr (wgmma_is_there()) {
        struct dq_shared<D> *const shared = launch_shared<struct dq_shared<D>>();
        const struct attention &a = g.of;
        const struct attention_rows q = attention_queries(&a, ATTENTION_MMA_OWN, blockIdx.x);
        const int own = attention_wgmma_group() * WGMMA_ROWS;
        const int row = attention_mma_first<1>(&q) - q.first + attention_mma_row(0);
        float dq[D / 8][4] = {};
        struct own_out<D> out;

        attention_tile_copy(&shared->d_outs, &a, g.d_out, a.ldo, q, q.first);
        async_copy_commit();
        load_out<D>(&out, a, q);
        attention_tile_copy(&shared->queries, &a, a.q, a.ldq, q, q.first);
        keep_queries(shared, a, q);
        attention_for_keys(
            &a, q, shared->tiles,
            [&](const struct attention_key_tiles<attention_wgmma_tile<D>> &now, int n) {
                if (attention_mma_any(&a, &q, q.first + own, WGMMA_ROWS, n, WGMMA_ROWS))
                    add_keys<D>(dq[0], a, q, *shared, own, row, now, n);
            },
            [&] {
                async_copy_wait<1>(); /* d_outs, but not the first tile */
                keep_delta<D>(shared, out);
            });
        store_delta(delta, *shared, q);
        mma_gradient_store<D>(g, g.dq, g.lddq, q, attention_mma_first<1>(&q), dq, a.scale, 0);
    }
}

/* ---- dk and dv ---- */

template <int D> struct dkv_shared {
    attention_wgmma_own<D> keys, values;
    struct attention_query_tiles<attention_wgmma_tile<D>> tiles[2];
};

template <int D> struct dkv_sums {
    float dk[D / 8][4], dv[D / 8][4];
};

/* The queries that see the lane's keys, of which `first` is the warp's first. */
template <int D>
static __device__ inline struct attention_wgmma_seen queries_of_keys(const struct attention &a,
                                                                     const struct attention_rows &q,
                                                                     int first)
{
    struct attention_wgmma_seen seen;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int key = first + attention_mma_row(2 * h);
        const int64_t end = a.window > 0 ? key + a.window : q.rows;

        seen.from[h] = a.keys ? 0 : key;
        seen.end[h] = end < q.rows ? (int)end : q.rows;
    }
    return seen;
}

/* Products of the warp's own keys and a tile of queries, from n, become probabilities. */
template <int D>
static __device__ __forceinline__ void key_weights(
    float *s, const struct attention &a, const struct attention_rows &q,
    const struct attention_rows &k, int n,
    const struct attention_query_tiles<attention_wgmma_tile<D>> &now)
{
    const int first = attention_mma_first<1>(&k);
    const float by = a.scale * INSTRUCTION_LOG2_E;

#pragma unroll
    for (int i = 0; i < SCORES; i++) {
        const float lse = now.lse[i / 4 * 8 + attention_mma_col(i)];

        s[i] = instruction_exp2(fmaf(s[i], by, -lse * INSTRUCTION_LOG2_E));
    }
    if (!attention_mma_all(&a, &q, n, WGMMA_ROWS, first, ATTENTION_MMA_ROWS))
        attention_wgmma_hide<D>(s, queries_of_keys<D>(a, q, first), n, 0);
}

/* Add what a tile of queries, from n, gives to dk and dv. */
template <int D>
static __device__ __forceinline__ void add_queries(
    struct dkv_sums<D> *sums, const struct attention &a, const struct attention_rows &q,
    const struct attention_rows &k, const struct dkv_shared<D> &shared, int own,
    const struct attention_query_tiles<attention_wgmma_tile<D>> &now, int n)
{
    float s[SCORES], dp[SCORES];
    struct attention_wgmma_weights weights, gradients;

    wgmma_fence();
    attention_wgmma_dots<D>(s, shared.keys, own, now.queries);
    wgmma_commit();
    attention_wgmma_dots<D>(dp, shared.values, own, now.d_outs);
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_keep(s, SCORES);
    key_weights<D>(s, a, q, k, n, now);
    attention_wgmma_pack(&weights, s);
    wgmma_fence();
    attention_wgmma_sum<D>(sums->dv[0], weights, now.d_outs);
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_keep(dp, SCORES);
#pragma unroll
    for (int i = 0; i < SCORES; i++)
        s[i] *= dp[i] - now.delta[i / 4 * 8 + attention_mma_col(i)];
    attention_wgmma_pack(&gradients, s);
    wgmma_fence();
    attention_wgmma_sum<D>(sums->dk[0], gradients, now.queries);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_keep(sums->dv[0], D / 2);
    wgmma_keep(sums->dk[0], D / 2);
}

template <int D>
__global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    attention_wgmma_dkv_kernel(const __grid_constant__ struct attention_backward g,
                               const float *delta)
{
    if constexpr (wgmma_is_there()) {
        struct dkv_shared<D> *const shared = launch_shared<struct dkv_shared<D>>();
        const struct attention &a = g.of;
        const struct attention_rows k = attention_own_keys(&a, ATTENTION_MMA_OWN, blockIdx.x);
        const int own = attention_wgmma_group() * WGMMA_ROWS, first = k.first + own;
        struct dkv_sums<D> sums = {
        };

        attention_tile_copy(&shared->keys, &a, a.k, a.ldk, k, k.first);
        attention_tile_copy(&shared->values, &a, a.v, a.ldv, k, k.first);
        attention_for_queries(g, delta, k, shared->tiles,
                              [&](const struct attention_query_tiles<attention_wgmma_tile<D>> &now,
                                  const struct attention_rows &q, int n) {
                                  if (attention_mma_any(&a, &q, n, WGMMA_ROWS, first, WGMMA_ROWS))
                                      add_queries<D>(&sums, a, q, k, *shared, own, now, n);
                              });
        async_copy_wait<0>(); /* where no query sees the keys */
        mma_gradient_store<D>(g, g.dk, g.lddk, k, attention_mma_first<1>(&k), sums.dk, a.scale, 0);
        mma_gradient_store<D>(g, g.dv, g.lddv, k, attention_mma_first<1>(&k), sums.dv, 1, 0);
    }
}

template <int D>
static void run(struct device_queue *q, const struct attention_backward *g, float *delta)
{
    static const char what[] = "the gradient of attention";

    launch_each_shared<struct dq_shared<D>>(q, what,
                                            attention_query_blocks(&g->of, ATTENTION_MMA_OWN),
                                            attention_wgmma_dq_kernel<D>, *g, delta);
    launch_each_shared<struct dkv_shared<D>>(q, what,
                                             attention_key_blocks(&g->of, ATTENTION_MMA_OWN),
                                             attention_wgmma_dkv_kernel<D>, *g, delta);
}

void attention_wgmma_backward(struct device_queue *q, const struct attention_backward *g,
                              float *delta)
{
    if (g->of.head_dim == 64)
        run<64>(q, g, delta);
    else
        run<128>(q, g, delta);
}
