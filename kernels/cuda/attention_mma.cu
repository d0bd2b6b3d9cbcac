/*
 * kernels/cuda/attention_mma.cu - attention in bf16 on tensor cores, with sums in f32: the forward
 * kernel of attention.cu, with products of fragments (mma.cuh). A block has 128 rows of its own and
 * passes over the others 32 at a time, or 16 of wide heads. Weights, and the gradients of scores,
 * are rounded to bf16 before they are multiplied, as in Dao 2023 (FlashAttention-2).
 */
#include "kernels/cuda/attention_mma.cuh"

/* The softmax of a lane's rows over the keys so far: sum over those that the lane has, max and o
 * over all. Half h of m is row 16 m + 8 h + g of the warp's own. */
template <int C, int M> struct mma_softmax {
    float max[M][2], sum[M][2];
    float o[M][C / 8][4];
};

/* op over the four lanes that share a row. */
template <typename F> static __device__ inline float of_row(float x, F op)
{
    x = op(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return op(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

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

/* Take the scores of half h of m: they become weights. By how much what came before is scaled. An
 * exponent is one instruction, x * by - base. */
template <int PARTS, int C, int M>
static __device__ inline float softmax_half(struct mma_softmax<C, M> *t, float (*s)[M][2][4], int m,
                                            int h, float by)
{
    float most = -INFINITY, sum = 0, before;

#pragma unroll
    for (int i = 0; i < 4 * PARTS; i++)
        most = fmaxf(most, s[i / 4][m][i / 2 % 2][2 * h + i % 2]);
    most = fmaxf(t->max[m][h], of_row(most, [](float x, float y) { return fmaxf(x, y); }));
    const float base = most == -INFINITY ? 0 : most * by;

#pragma unroll
    for (int i = 0; i < 4 * PARTS; i++) {
        float *x = &s[i / 4][m][i / 2 % 2][2 * h + i % 2];

        *x = instruction_exp2(fmaf(*x, by, -base));
        sum += *x;
    }
    before = t->max[m][h] == most ? 1 : instruction_exp2(fmaf(t->max[m][h], by, -base));
    t->sum[m][h] = t->sum[m][h] * before + sum;
    t->max[m][h] = most;
    return before;
}

/* Take a tile of scores: they become weights, and what came before is scaled. Often no row has a
 * new maximum, and then the sums stay as they are. */
template <int PARTS, int C, int M>
static __device__ void softmax_add(struct mma_softmax<C, M> *t, float (*s)[M][2][4], float unit)
{
    float before[M][2];
    bool is_new = false;

#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        before[i / 2][i % 2] = softmax_half<PARTS>(t, s, i / 2, i % 2, unit * INSTRUCTION_LOG2_E);
        is_new |= before[i / 2][i % 2] != 1;
    }
    if (!__any_sync(0xffffffffu, is_new))
        return;
#pragma unroll
    for (int i = 0; i < C / 2 * M; i++)
        t->o[i / (C / 2)][i / 4 % (C / 8)][i % 4] *= before[i / (C / 2)][i / 2 % 2];
}

/* Merge two neighbours into a.sum. */
static __device__ inline void merge_pair(const struct attention &a, int64_t at, const float *o,
                                         const struct attention_merge &m)
{
    float x = o[0] * m.by, y = o[1] * m.by;

    float2 *both = reinterpret_cast<float2 *>(a.sum + at); /* four lanes have a whole sector */
    float2 old = a.merge ? *both : float2{ 0, 0 };

    *both = { a.merge ? x + m.by_old * old.x : x, a.merge ? y + m.by_old * old.y : y };
}

/* Columns col .. col + C - 1 of half h of m of the warp's own rows. The last pass stores lse, which
 * all merge. */
template <int C, int M>
static __device__ void mma_forward_store(const struct attention &a, const struct attention_rows &q,
                                         const struct mma_softmax<C, M> &t, int m, int h,
                                         float unit, int col)
{
    const bool is_last = col + C >= a.head_dim;
    const int row = attention_mma_first<M>(&q) + m * ATTENTION_MMA_ROWS + attention_mma_row(2 * h);
    const int64_t at = (q.at + row) * a.ldo + q.col;
    const bool in = row < q.rows;
    float *kept = a.lse + q.lse_at + row;
    float before = in && a.merge ? *kept : -INFINITY;
    const float sum = of_row(t.sum[m][h], [](float x, float y) { return x + y; });
    struct attention_merge merge = attention_merge_of(&a, t.max[m][h] * unit, sum, before);

    __syncwarp(); /* all lanes have read lse */
    if (in && is_last && attention_mma_col(0) == 0)
        *kept = merge.lse;
    if (!a.sum) {
        attention_mma_store_row<C>(in ? static_cast<uint16_t *>(a.out) + at : nullptr, t.o[m], h,
                                   merge.by, col, (int)a.head_dim);
        return;
    }
#pragma unroll
    for (int j = 0; j < C / 8; j++)
        if (in && col + 8 * j < a.head_dim)
            merge_pair(a, at + col + 8 * j + attention_mma_col(0), &t.o[m][j][2 * h], merge);
}

/* Add a tile of keys and values, of which the first is n. */
template <int D, int C, int M, bool FULL>
static __device__ inline void add_tile(struct mma_softmax<C, M> *t, const struct attention &a,
                                       const struct attention_rows &q,
                                       const uint32_t (*own)[D / 16][4],
                                       const struct attention_mma_key_tiles<D, M> &now, int n,
                                       int col)
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
                                    struct attention_mma_key_tiles<D, M> *tiles, int col)
{
    const int first = attention_mma_first<M>(&q);
    struct mma_softmax<C, M> t = {
    };

#pragma unroll
    for (int i = 0; i < 2 * M; i++)
        t.max[i / 2][i % 2] = -INFINITY;
    attention_mma_for_keys<D, M>(
        &a, q, tiles, [&](const struct attention_mma_key_tiles<D, M> &now, int n) {
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
    __shared__ struct attention_mma_key_tiles<D, M> tiles[2];
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
