/*
 * kernels/cuda/attention_softmax.cuh - what the forward kernels of attention_mma_forward.cu and
 * attention_wgmma_forward.cu share: the softmax of scores in fragments, and how its results are
 * stored.
 */
#ifndef KERNELS_CUDA_ATTENTION_SOFTMAX_CUH
#define KERNELS_CUDA_ATTENTION_SOFTMAX_CUH

#include "kernels/cuda/attention_mma.cuh"

/* The softmax of a lane's rows over the keys so far: sum over those that the lane has, max and o
 * over all. Half h of m is row 16 m + 8 h + g of the warp's own. */
template <int C, int M> struct attention_softmax {
    float max[M][2], sum[M][2];
    float o[M][C / 8][4];
};

/* op over the four lanes that share a row. */
template <typename F> static __device__ inline float of_row(float x, F op)
{
    x = op(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return op(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Take the scores of half h of m: they become weights. By how much what came before is scaled. An
 * exponent is one instruction, x * by - base. */
template <int PARTS, int C, int M>
static __device__ inline float softmax_half(struct attention_softmax<C, M> *t, float (*s)[M][2][4],
                                            int m, int h, float by)
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
static __device__ void softmax_add(struct attention_softmax<C, M> *t, float (*s)[M][2][4],
                                   float unit)
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
                                         const struct attention_softmax<C, M> &t, int m, int h,
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

#endif
