/*
 * kernels/cuda/attention_mma_forward.cu - attention in bf16 on tensor cores, with sums in f32: the
 * forward kernel of attention.cu, with products of fragments (mma.cuh). A block has 128 rows of its
 * own and passes over the others 32 at a time, or 16 of wide heads. Weights, and the gradients of
 * scores, are rounded to bf16 before they are multiplied, as in Dao 2023 (FlashAttention-2).
 */
#include "kernels/cuda/attention_softmax.cuh"

/* The scores of the warp's own queries and a tile of keys, of which the first is n: in
 * attention_mma_unit, and -INFINITY where a query does not see a key. */
template <int D, int M, bool FULL>
static __device__ void scores_of(float (*s)[M][2][4], const struct attention &a,
                                 const struct attention_rows &q, const uint32_t (*own)[D / 16][4],
                                 const struct attention_mma_tile<D, M> &keys, int n)
{
    enum { ROWS = ATTENTION_MMA_ROWS };
    const int first = attention_mma_first<M>(&q);

#pragma unroll
    for (int p = 0; p < attention_mma_tile<D, M>::PARTS; p++) {
        const int key = n + p * ROWS;
        const bool any = FULL || attention_mma_any(&a, &q, first, ROWS * M, key, ROWS);
        const bool all = FULL || (any && attention_mma_all(&a, &q, first, ROWS * M, key, ROWS));

        if (any)
            attention_mma_dots<D, M, FULL>(s[p], own, keys, p * ROWS, (int)a.head_dim);
#pragma unroll
        for (int i = 0; i < 8 * M; i++) {
            float *x = &s[p][i / 8][i / 4 % 2][i % 4];

            if (any && attention_mma_wide<D>())
                *x = attention_mma_score<D>(a, *x);
            if (!all &&
                (!any || !attention_sees(&a, first + i / 8 * ROWS + attention_mma_row(i % 4),
                                         key + i / 4 % 2 * 8 + attention_mma_col(i))))
                *x = -INFINITY;
        }
    }
}

/* Add a tile of keys and values, of which the first is n. */
template <int D, int C, int M, bool FULL>
static __device__ inline void add_tile(struct attention_softmax<C, M> *t, const struct attention &a,
                                       const struct attention_rows &q,
                                       const uint32_t (*own)[D / 16][4],
                                       const attention_mma_key_tiles<D, M> &now, int n, int col)
{
    enum { PARTS = attention_mma_tile<D, M>::PARTS, ROWS = ATTENTION_MMA_ROWS };
    const int first = attention_mma_first<M>(&q);
    float s[PARTS][M][2][4];

    scores_of<D, M, FULL>(s, a, q, own, now.keys, n);
    softmax_add<PARTS>(t, s, attention_mma_unit<D>(a));
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        if (FULL || attention_mma_any(&a, &q, first, ROWS * M, n + p * ROWS, ROWS))
            attention_mma_sum<C, D, M, FULL>(t->o, s[p], now.values, p * ROWS, col,
                                             (int)a.head_dim);
}

/* Columns col .. col + C - 1 of the block's own rows. All threads of the block call it. */
template <int D, int C, int M>
static __device__ void forward_pass(const struct attention &a, const struct attention_rows &q,
                                    const uint32_t (*own)[D / 16][4],
                                    attention_mma_key_tiles<D, M> *tiles, int col)
{
    const int first = attention_mma_first<M>(&q);
    struct attention_softmax<C, M> t = {
    };

#pragma unroll
    for (int i = 0; i < 2 * M; i++)
        t.max[i / 2][i % 2] = -INFINITY;
    attention_for_keys(&a, q, tiles, [&](const attention_mma_key_tiles<D, M> &now, int n) {
        if (attention_mma_full<D>(&a, &q, first, ATTENTION_MMA_ROWS * M, n,
                                  attention_mma_tile<D, M>::ROWS))
            add_tile<D, C, M, true>(&t, a, q, own, now, n, col);
        else
            add_tile<D, C, M, false>(&t, a, q, own, now, n, col);
    });
#pragma unroll
    for (int i = 0; i < 2 * M; i++)
        mma_forward_store<C, M>(a, q, t, i / 2, i % 2, attention_mma_unit<D>(a), col);
}

template <int D, int C, int M>
__global__ void __launch_bounds__(attention_mma_threads<M>(), M)
    attention_mma_forward_kernel(const __grid_constant__ struct attention a)
{
    __shared__ attention_mma_key_tiles<D, M> tiles[2];
    const struct attention_rows q = attention_queries(&a, ATTENTION_MMA_OWN, blockIdx.x);
    uint32_t own[M][D / 16][4];

    attention_mma_load_own<D, M>(own, &a, a.q, a.ldq, q);
#pragma unroll 1
    for (int col = 0; col < D && col < a.head_dim; col += C)
        forward_pass<D, C, M>(a, q, own, tiles, col);
}

/* ---- launches ---- */

/* Rows of bf16 are loaded and stored 16 bytes at a time. */
static bool is_aligned(const void *x, int64_t ld)
{
    return (uintptr_t)x % 16 == 0 && ld % 8 == 0;
}

bool attention_mma_fits(const struct attention *a)
{
    return a->type == DTYPE_BF16 && a->scale > 0 && a->head_dim % 8 == 0 &&
           a->head_dim <= ATTENTION_MMA_HEAD_DIM_MAX && is_aligned(a->q, a->ldq) &&
           is_aligned(a->k, a->ldk) && is_aligned(a->v, a->ldv) && is_aligned(a->out, a->ldo) &&
           is_aligned(a->sum, a->ldo);
}

/* Gradients in f32 are stored two at a time. */
static bool is_gradient_aligned(const struct attention_backward *g, const void *x, int64_t ld)
{
    return g->type == DTYPE_BF16 ? is_aligned(x, ld) : (uintptr_t)x % 8 == 0 && ld % 2 == 0;
}

bool attention_mma_backward_fits(const struct attention_backward *g)
{
    return attention_mma_fits(&g->of) && is_aligned(g->d_out, g->of.ldo) &&
           is_gradient_aligned(g, g->dq, g->lddq) && is_gradient_aligned(g, g->dk, g->lddk) &&
           is_gradient_aligned(g, g->dv, g->lddv);
}

void attention_mma_forward(struct device_queue *q, const struct attention *a)
{
    static const char what[] = "attention";
    int64_t blocks = attention_query_blocks(a, ATTENTION_MMA_OWN);

    switch (attention_mma_columns(a)) {
    case 64:
        launch_each<attention_mma_threads<2>()>(q, what, blocks,
                                                attention_mma_forward_kernel<64, 64, 2>, *a);
        break;
    case 128:
        launch_each(q, what, blocks, attention_mma_forward_kernel<128, 128, 1>, *a);
        break;
    default:
        launch_each(q, what, blocks, attention_mma_forward_kernel<256, 128, 1>, *a);
    }
}
