/*
 * kernels/cuda/attention_wgmma_forward.cu - the forward kernel of attention.cu for Hopper, in bf16,
 * with products of warpgroups (wgmma.cuh). Weights are rounded to bf16, as in
 * attention_mma_forward.cu.
 */
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_wgmma.cuh"

template <int D> struct forward_shared {
    attention_wgmma_own<D> queries;
    struct attention_key_tiles<attention_wgmma_tile<D>> tiles[2];
};

/* Begin the products of the warpgroup's own queries and a tile of keys, as a group. */
template <int D>
static __device__ __forceinline__ void begin_scores(attention_wgmma_scores &s,
                                                    const attention_wgmma_own<D> &queries, int own,
                                                    const attention_wgmma_tile<D> &keys)
{
    wgmma_fence();
    attention_wgmma_dots<D>(s[0][0][0], queries, own, keys);
    wgmma_commit();
}

template <int D> static __device__ __forceinline__ void end_scores(attention_wgmma_scores &s)
{
    wgmma_wait<0>();
    wgmma_keep(s[0][0][0], WGMMA_COLUMNS / 2);
}

/* The scores of a tile, of which n is the first key, become weights; begin to add these times the
 * values, as a group. */
template <int D>
static __device__ __forceinline__ void begin_sum(struct attention_softmax<D, 1> *t,
                                                 attention_wgmma_scores &s,
                                                 const struct attention &a,
                                                 const struct attention_rows &q, int n,
                                                 struct attention_wgmma_weights *weights,
                                                 const attention_wgmma_tile<D> &values)
{
    if (!attention_mma_all(&a, &q, attention_mma_first<1>(&q), ATTENTION_MMA_ROWS, n, WGMMA_ROWS))
        attention_wgmma_hide<D>(s[0][0][0], attention_wgmma_keys(a, q), n, -INFINITY);
    softmax_add<ATTENTION_WGMMA_PARTS>(t, s, a.scale);
    attention_wgmma_pack(weights, s[0][0][0]);
    wgmma_keep(t->o[0][0], D / 2);
    wgmma_fence();
    attention_wgmma_sum<D>(t->o[0][0], *weights, values);
    wgmma_commit();
}

template <int D> static __device__ __forceinline__ void end_sum(struct attention_softmax<D, 1> *t)
{
    wgmma_wait<0>();
    wgmma_keep(t->o[0][0], D / 2);
}

/* One tile after the other: two blocks on a processor, whose products and softmax are at different
 * times. */
template <int D>
static __device__ __forceinline__ void forward_simple(struct attention_softmax<D, 1> *t,
                                                      const struct attention &a,
                                                      const struct attention_rows &q, int own,
                                                      struct forward_shared<D> *shared)
{
    attention_for_keys(&a, q, shared->tiles,
                       [&](const struct attention_key_tiles<attention_wgmma_tile<D>> &now, int n) {
                           attention_wgmma_scores s;
                           struct attention_wgmma_weights weights;

                           if (!attention_mma_any(&a, &q, q.first + own, WGMMA_ROWS, n, WGMMA_ROWS))
                               return;
                           begin_scores<D>(s, shared->queries, own, now.keys);
                           end_scores<D>(s);
                           begin_sum<D>(t, s, a, q, n, &weights, now.values);
                           end_sum<D>(t);
                       });
}

/* Begin to copy keys from n on to one tile, and values from n - 64 on to another one, as a group.
 */
template <int D>
static __device__ __forceinline__ void copy_next(struct forward_shared<D> *shared,
                                                 const struct attention &a,
                                                 const struct attention_rows &k, int n, int at)
{
    if (n < k.rows)
        attention_tile_copy(&shared->tiles[at].keys, &a, a.k, a.ldk, k, n);
    attention_tile_copy(&shared->tiles[at ^ 1].values, &a, a.v, a.ldv, k, n - WGMMA_ROWS);
    async_copy_commit();
}

/* Only one block fits on a processor, so the products of the next tile of keys run beside the
 * softmax of this one (Shah et al. 2024, FlashAttention-3). */
template <int D>
static __device__ __forceinline__ void forward_ahead(struct attention_softmax<D, 1> *t,
                                                     const struct attention &a,
                                                     const struct attention_rows &q, int own,
                                                     struct forward_shared<D> *shared)
{
    const struct attention_rows k = attention_keys_of(&a, &q);
    attention_wgmma_scores s, next;
    struct attention_wgmma_weights weights;
    int n = attention_first_tile(&a, &q, WGMMA_ROWS), at = 0;

    attention_tile_copy(&shared->tiles[0].keys, &a, a.k, a.ldk, k, n);
    async_copy_commit();
    copy_next<D>(shared, a, k, n + WGMMA_ROWS, 1);
    async_copy_wait<1>();
    wgmma_fence_shared();
    __syncthreads();
    begin_scores<D>(s, shared->queries, own, shared->tiles[0].keys);
    end_scores<D>(s);
    for (; n + WGMMA_ROWS < k.rows; n += WGMMA_ROWS, at ^= 1) {
        attention_tiles_arrive<attention_wgmma_tile<D>>();
        copy_next<D>(shared, a, k, n + 2 * WGMMA_ROWS, at);
        begin_scores<D>(next, shared->queries, own, shared->tiles[at ^ 1].keys);
        begin_sum<D>(t, s, a, q, n, &weights, shared->tiles[at].values);
        end_scores<D>(next);
        end_sum<D>(t);
#pragma unroll
        for (int i = 0; i < WGMMA_COLUMNS / 2; i++)
            s[i / 8][0][i / 4 % 2][i % 4] = next[i / 8][0][i / 4 % 2][i % 4];
    }
    attention_tiles_arrive<attention_wgmma_tile<D>>();
    begin_sum<D>(t, s, a, q, n, &weights, shared->tiles[at].values);
    end_sum<D>(t);
}

template <int D>
__global__ void __launch_bounds__(LAUNCH_THREADS, D == 64 ? 2 : 1)
    attention_wgmma_forward_kernel(const __grid_constant__ struct attention a)
{
    if constexpr (wgmma_is_there()) {
        struct forward_shared<D> *const shared = launch_shared<struct forward_shared<D>>();
        const struct attention_rows q = attention_wgmma_queries(&a, blockIdx.x);
        const int own = attention_wgmma_group() * WGMMA_ROWS;
        struct attention_softmax<D, 1> t = {
        };

        t.max[0][0] = t.max[0][1] = -INFINITY;
        attention_tile_copy(&shared->queries, &a, a.q, a.ldq, q, q.first);
        if constexpr (D == 64)
            forward_simple<D>(&t, a, q, own, shared);
        else
            forward_ahead<D>(&t, a, q, own, shared);
#pragma unroll
        for (int h = 0; h < 2; h++)
            mma_forward_store<D, 1>(a, q, t, 0, h, a.scale, 0);
    }
}

/* ---- launches ---- */

bool attention_wgmma_fits(const struct device_queue *q, const struct attention *a)
{
    return cuda_queue_capability(q) == WGMMA_CAPABILITY && attention_mma_fits(a) && a->cap == 0 &&
           (a->head_dim == 64 || a->head_dim == 128);
}

void attention_wgmma_forward(struct device_queue *q, const struct attention *a)
{
    static const char what[] = "attention";
    const int64_t blocks = attention_query_blocks(a, ATTENTION_MMA_OWN);

    if (a->head_dim == 64)
        launch_each_shared<struct forward_shared<64>>(q, what, blocks,
                                                      attention_wgmma_forward_kernel<64>, *a);
    else
        launch_each_shared<struct forward_shared<128>>(q, what, blocks,
                                                       attention_wgmma_forward_kernel<128>, *a);
}
