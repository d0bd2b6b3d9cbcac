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
        const struct attention_rows q = attention_wgmma_queries(&a, blockIdx.x);
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

/* Tiles of queries: the one whose sums run and the one before it, and two that are copied. */
enum { DKV_TILES = 4, DKV_AHEAD = DKV_TILES - 1 };

template <int D> struct dkv_shared {
    attention_wgmma_own<D> keys, values;
    struct attention_query_tiles<attention_wgmma_tile<D>> tiles[DKV_TILES];
};

/* What the products of a warpgroup write, and read in registers. */
template <int D> struct dkv_products {
    float s[SCORES], dp[SCORES];
    struct attention_wgmma_weights weights, gradients;
    float dk[D / 8][4], dv[D / 8][4];
};

template <int D> static __device__ __forceinline__ void end_products(struct dkv_products<D> *p)
{
    wgmma_wait<0>();
    wgmma_keep(p->s, SCORES);
    wgmma_keep(p->dp, SCORES);
    if (D == 64)
        wgmma_keep_words(p->weights.a[0], SCORES / 2);
    wgmma_keep_words(p->gradients.a[0], SCORES / 2);
    wgmma_keep(p->dv[0], D / 2);
    wgmma_keep(p->dk[0], D / 2);
}

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
    float *w, const float *s, const struct attention &a, const struct attention_rows &q,
    const struct attention_rows &k, int n,
    const struct attention_query_tiles<attention_wgmma_tile<D>> &now)
{
    const int first = attention_mma_first<1>(&k);
    const float by = a.scale * INSTRUCTION_LOG2_E;

#pragma unroll
    for (int i = 0; i < SCORES; i++) {
        const float lse = now.lse[i / 4 * 8 + attention_mma_col(i)];

        w[i] = instruction_exp2(fmaf(s[i], by, -lse * INSTRUCTION_LOG2_E));
    }
    if (!attention_mma_all(&a, &q, n, WGMMA_ROWS, first, ATTENTION_MMA_ROWS))
        attention_wgmma_hide<D>(w, queries_of_keys<D>(a, q, first), n, 0);
}

/* The queries that see a block's own keys, tile after tile. Only `rows` of q, any head's, is used.
 */
template <int D> struct dkv_pass {
    const struct attention_backward &g;
    const float *delta;
    struct attention_rows k, q;
    int begin, end, heads;

    __device__ dkv_pass(const struct attention_backward &of, const float *its_delta)
        : g(of), delta(its_delta), k(attention_wgmma_own_keys(&of.of, blockIdx.x)),
          q(attention_queries_of(&of.of, &k, 0)),
          begin(of.of.keys ? 0 : k.first / WGMMA_ROWS * WGMMA_ROWS),
          end(attention_queries_end(&of.of, &k)),
          heads(begin < end ? (int)(of.of.heads / of.of.kv_heads) : 0)
    {
    }

    __device__ struct attention_query_place after(struct attention_query_place at) const
    {
        return next_place(at, WGMMA_ROWS, begin, end);
    }

    /* Begin to copy a tile, as a group, which is empty after the last one. Returns the next. */
    __device__ struct attention_query_place copy(
        struct attention_query_tiles<attention_wgmma_tile<D>> *to,
        struct attention_query_place at) const
    {
        if (at.head < heads)
            copy_queries(to, g, delta, attention_queries_of(&g.of, &k, at.head), at.n);
        else
            async_copy_commit();
        return after(at);
    }
};

/* Whether registers suffice for two tiles of products at a time. */
template <int D> static __device__ constexpr bool dkv_is_ahead(void)
{
    return D == 64;
}

/* Begin the products of a tile of queries with the warpgroup's keys, from row `own` of the block's
 * on, and those of its d_outs with the values, unless begin_sums does. */
template <int D>
static __device__ __forceinline__ void begin_products(
    struct dkv_products<D> *p, const struct dkv_shared<D> &shared, int own,
    const struct attention_query_tiles<attention_wgmma_tile<D>> &tile)
{
    wgmma_forget(p->s, SCORES);
    wgmma_forget(p->dp, SCORES);
    wgmma_fence();
    attention_wgmma_dots<D>(p->s, shared.keys, own, tile.queries);
    if (dkv_is_ahead<D>())
        attention_wgmma_dots<D>(p->dp, shared.values, own, tile.d_outs);
    wgmma_commit();
}

/* These products of a tile of queries, from n, become weights; begin to add what it gives to dk and
 * dv. */
template <int D>
static __device__ __forceinline__ void begin_sums(
    struct dkv_products<D> *p, const struct dkv_pass<D> &pass, const struct dkv_shared<D> &shared,
    int own, const struct attention_query_tiles<attention_wgmma_tile<D>> &now, int n)
{
    float w[SCORES];

    if (!dkv_is_ahead<D>()) {
        wgmma_fence();
        attention_wgmma_dots<D>(p->dp, shared.values, own, now.d_outs);
        wgmma_commit();
    }
    key_weights<D>(w, p->s, pass.g.of, pass.q, pass.k, n, now);
    attention_wgmma_pack(&p->weights, w);
    wgmma_fence();
    attention_wgmma_sum<D>(p->dv[0], p->weights, now.d_outs);
    wgmma_commit();
    if (!dkv_is_ahead<D>()) {
        wgmma_wait<1>();
        wgmma_keep(p->dp, SCORES);
    }
#pragma unroll
    for (int i = 0; i < SCORES; i++)
        w[i] *= p->dp[i] - now.delta[i / 4 * 8 + attention_mma_col(i)];
    attention_wgmma_pack(&p->gradients, w);
    wgmma_fence();
    attention_wgmma_sum<D>(p->dk[0], p->gradients, now.queries);
    wgmma_commit();
    if (!dkv_is_ahead<D>()) {
        wgmma_wait<1>();
        wgmma_keep_words(p->weights.a[0], SCORES / 2);
    }
}

/* Pass over all tiles. The warpgroups compute by turns: while one makes weights, the products of
 * the other one run, the sums of its tile and the scores of its next one, and then it waits for
 * them. In each step a warpgroup takes a turn before and one behind its weights; the second
 * warpgroup is half a step later, by the turn with which it begins. When a turn behind step i ends,
 * both have waited for the sums of step i - 1, so the place of its tile is free; and what both have
 * copied before their turns behind step i - 1, tile i + 1, is there for both. A warpgroup
 * leaves out no tile, not even one whose queries see none of its keys: nvcc lets no product run
 * across a branch. */
template <int D>
static __device__ __forceinline__ void add_all_queries(struct dkv_products<D> *p,
                                                       struct dkv_shared<D> *shared,
                                                       const struct dkv_pass<D> &pass)
{
    const int group = attention_wgmma_group(), own = group * WGMMA_ROWS;
    struct attention_query_place at = { 0, pass.begin }, ahead = at;
    int i = 0;

    for (int tile = 0; tile < DKV_AHEAD; tile++)
        ahead = pass.copy(&shared->tiles[tile], ahead);
    if (pass.heads == 0) { /* no query sees the keys */
        async_copy_wait<0>();
        return;
    }
    async_copy_wait<DKV_AHEAD - 1>();
    wgmma_fence_shared();
    __syncthreads();
    wgmma_keep(p->dv[0], D / 2);
    wgmma_keep(p->dk[0], D / 2);
    begin_products<D>(p, *shared, own, shared->tiles[0]);
    async_copy_wait<DKV_AHEAD - 2>();
    wgmma_fence_shared();
    if (group == 1)
        wgmma_turn();
    for (; pass.after(at).head < pass.heads; i++) {
        end_products<D>(p);
        wgmma_turn();
        begin_sums<D>(p, pass, *shared, own, shared->tiles[i % DKV_TILES], at.n);
        begin_products<D>(p, *shared, own, shared->tiles[(i + 1) % DKV_TILES]);
        async_copy_wait<0>();
        wgmma_fence_shared();
        wgmma_turn();
        ahead = pass.copy(&shared->tiles[(i + DKV_AHEAD) % DKV_TILES], ahead);
        at = pass.after(at);
    }
    end_products<D>(p);
    wgmma_turn();
    begin_sums<D>(p, pass, *shared, own, shared->tiles[i % DKV_TILES], at.n);
    if (group == 0)
        wgmma_turn();
    end_products<D>(p);
}

template <int D>
__global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    attention_wgmma_dkv_kernel(const __grid_constant__ struct attention_backward g,
                               const float *delta)
{
    if constexpr (wgmma_is_there()) {
        struct dkv_shared<D> *const shared = launch_shared<struct dkv_shared<D>>();
        const struct attention &a = g.of;
        const struct dkv_pass<D> pass(g, delta);
        const struct attention_rows &k = pass.k;
        struct dkv_products<D> p = {
        };

        attention_tile_copy(&shared->keys, &a, a.k, a.ldk, k, k.first);
        attention_tile_copy(&shared->values, &a, a.v, a.ldv, k, k.first);
        add_all_queries<D>(&p, shared, pass);
        mma_gradient_store<D>(g, g.dk, g.lddk, k, attention_mma_first<1>(&k), p.dk, a.scale, 0);
        mma_gradient_store<D>(g, g.dv, g.lddv, k, attention_mma_first<1>(&k), p.dv, 1, 0);
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
