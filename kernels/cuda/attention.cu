/*
 * kernels/cuda/attention.cu - see kernels/attention.h. Scores are never stored: a block has TILE_M
 * rows of its own and passes over the others, TILE_N at a time, with the online softmax of Dao et
 * al. 2022. The backward pass has one kernel whose own rows are queries (dq) and one whose own rows
 * are keys (dk, dv), so nothing is added by two blocks, and every run gives the same bits.
 *
 * All arithmetic here is f32 on ordinary cores. bf16 goes to attention_wgmma_forward.cu or
 * attention_mma_forward.cu where these can compute it; of bf16 only heads of odd sizes are left.
 */
#include "kernels/cuda/attention_run.cuh"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

/* ---- forward ---- */

/* The softmax of a warp's rows over the keys so far. */
struct softmax_state {
    float max[ATTENTION_OWN], sum[ATTENTION_OWN];
    float o[ATTENTION_OWN][ATTENTION_CHUNKS]; /* of column 32 c + lane */
};

/* Take one tile of scores: weights go to shared memory, and what came before is scaled. */
static __device__ void softmax_add(struct softmax_state *t, const float *scores, int lane,
                                   float (*weights)[ATTENTION_N])
{
#pragma unroll
    for (int i = 0; i < ATTENTION_OWN; i++) {
        float most = attention_warp_max(scores[i]), max = fmaxf(t->max[i], most);
        float p = scores[i] == -INFINITY ? 0 : expf(scores[i] - max);
        float before = t->max[i] == -INFINITY ? 0 : expf(t->max[i] - max);

        weights[attention_own_row(i)][lane] = p;
        t->sum[i] = t->sum[i] * before + attention_warp_sum(p);
        t->max[i] = max;
#pragma unroll
        for (int c = 0; c < ATTENTION_CHUNKS; c++)
            t->o[i][c] *= before;
    }
}

static __device__ void forward_store(const struct attention *a, const struct attention_rows *q,
                                     const struct softmax_state *t, int lane)
{
#pragma unroll
    for (int i = 0; i < ATTENTION_OWN; i++) {
        int64_t row = q->first + attention_own_row(i);

        if (row >= q->rows)
            continue;
        float *kept = a->lse + q->lse_at + row;
        struct attention_merge m =
            attention_merge_of(a, t->max[i], t->sum[i], a->merge ? *kept : -INFINITY);

        __syncwarp(); /* all lanes have read lse */
        if (lane == 0)
            *kept = m.lse;
#pragma unroll
        for (int c = 0; c < ATTENTION_CHUNKS; c++) {
            int64_t col = 32 * c + lane, at = (q->at + row) * a->ldo + q->col + col;
            float x = t->o[i][c] * m.by;

            if (col >= a->head_dim)
                continue;
            if (a->merge)
                x += m.by_old * (a->sum ? a->sum[at] : static_cast<const float *>(a->out)[at]);
            if (a->sum)
                a->sum[at] = x;
            else
                launch_store(a->out, a->type, at, x);
        }
    }
}

__global__ void __launch_bounds__(LAUNCH_THREADS, 2)
    attention_forward_kernel(const __grid_constant__ struct attention a)
{
    __shared__ struct attention_pair_tile tile;
    __shared__ float weights[ATTENTION_M][ATTENTION_N];
    const int lane = (int)(threadIdx.x % 32);

    for (int64_t b = blockIdx.x; b < attention_query_blocks(&a, ATTENTION_M); b += gridDim.x) {
        const struct attention_rows q = attention_queries(&a, ATTENTION_M, b);
        const struct attention_rows k = attention_keys_of(&a, &q);
        struct softmax_state t = {};

        for (int i = 0; i < ATTENTION_OWN; i++)
            t.max[i] = -INFINITY;
        for (int64_t n = attention_first_tile(&a, &q, ATTENTION_N); n < k.rows; n += ATTENTION_N) {
            float s[ATTENTION_OWN] = {};

            attention_dots(&tile, &a, a.q, a.ldq, q, a.k, a.ldk, k, n, s);
            for (int i = 0; i < ATTENTION_OWN; i++)
                s[i] = attention_sees(&a, q.first + attention_own_row(i), n + lane)
                           ? attention_score(&a, s[i])
                           : -INFINITY;
            softmax_add(&t, s, lane, weights);
            attention_add(&tile, &a, weights, a.v, a.ldv, k, n, t.o);
        }
        forward_store(&a, &q, &t, lane);
    }
}

void cuda_run_attention_forward(struct device_queue *q, const struct attention *a)
{
    if (!attention_check(q, a))
        return;
    if (attention_wgmma_fits(q, a))
        attention_wgmma_forward(q, a);
    else if (attention_mma_fits(a))
        attention_mma_forward(q, a);
    else
        launch_rows(q, "attention", attention_query_blocks(a, ATTENTION_M),
                    attention_forward_kernel, *a);
}

/* ---- backward ---- */

enum { DELTA_ROWS = 64 /* of a block */ };

/* delta = the sum over a head's columns of d_out * out, [batch][heads][q_step]. Lanes share a row:
 * the smallest power of two that has all its packs, so that narrow heads leave none idle. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    attention_delta_kernel(const __grid_constant__ struct attention_backward g, float *delta)
{
    const struct attention &a = g.of;
    int lanes = 32;

    while (lanes > 1 && lanes / 2 * N >= a.head_dim)
        lanes /= 2;
    const int of_warp = 32 / lanes, lane = launch_lane() % lanes;
    const int own = (int)(threadIdx.x / 32) * of_warp + launch_lane() / lanes;

    for (int64_t b = blockIdx.x; b < attention_query_blocks(&a, DELTA_ROWS); b += gridDim.x) {
        const struct attention_rows q = attention_queries(&a, DELTA_ROWS, b);

#pragma unroll 2
        for (int64_t first = q.first; first < q.end; first += LAUNCH_WARPS * of_warp) {
            const int64_t row = first + own, at = (q.at + row) * a.ldo + q.col;
            float sum = 0;

            for (int64_t c = lane * N; row < q.end && c < a.head_dim; c += lanes * N) {
                const struct pack<N> x = pack_load<N>(g.d_out, a.type, at + c);
                const struct pack<N> y = pack_load<N>(a.out, a.type, at + c);

#pragma unroll
                for (int j = 0; j < N; j++)
                    sum += x.x[j] * y.x[j];
            }
            for (int d = lanes / 2; d > 0; d /= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, d);
            if (lane == 0 && row < q.end)
                delta[q.lse_at + row] = sum;
        }
    }
}

static void run_delta(struct device_queue *q, const struct attention_backward *g, float *delta)
{
    const struct attention *a = &g->of;
    const bool is_packed =
        a->head_dim % PACK == 0 && a->ldo % PACK == 0 && pack_is_aligned(g->d_out, a->out);

    launch_rows(q, "the gradient of attention", attention_query_blocks(a, DELTA_ROWS),
                is_packed ? attention_delta_kernel<PACK> : attention_delta_kernel<1>, *g, delta);
}

/* The gradient of a product of a query and a key, whose score is s, from dp. */
static __device__ inline float dot_gradient(const struct attention &a, float s, float p, float dp,
                                            float delta)
{
    return p * (dp - delta) * attention_score_slope(&a, s);
}

/* Store or add a warp's own rows of a gradient. */
static __device__ void gradient_store(const struct attention_backward &g, void *to, int64_t ld,
                                      const struct attention_rows &rows,
                                      const float (*x)[ATTENTION_CHUNKS], int lane)
{
    const struct attention &a = g.of;

#pragma unroll
    for (int i = 0; i < ATTENTION_OWN; i++)
#pragma unroll
        for (int c = 0; c < ATTENTION_CHUNKS; c++) {
            int64_t row = rows.first + attention_own_row(i), col = 32 * c + lane;
            int64_t at = (rows.at + row) * ld + rows.col + col;

            if (row < rows.rows && col < a.head_dim)
                launch_store(to, g.type, at,
                             a.merge ? static_cast<float *>(to)[at] + x[i][c] : x[i][c]);
        }
}

__global__ void __launch_bounds__(LAUNCH_THREADS, 2)
    attention_dq_kernel(const __grid_constant__ struct attention_backward g, const float *delta)
{
    __shared__ struct attention_pair_tile tile;
    __shared__ float weights[ATTENTION_M][ATTENTION_N];
    const struct attention &a = g.of;
    const int lane = (int)(threadIdx.x % 32);

    for (int64_t b = blockIdx.x; b < attention_query_blocks(&a, ATTENTION_M); b += gridDim.x) {
        const struct attention_rows q = attention_queries(&a, ATTENTION_M, b);
        const struct attention_rows k = attention_keys_of(&a, &q);
        float dq[ATTENTION_OWN][ATTENTION_CHUNKS] = {};

        for (int64_t n = attention_first_tile(&a, &q, ATTENTION_N); n < k.rows; n += ATTENTION_N) {
            float s[ATTENTION_OWN] = {}, dp[ATTENTION_OWN] = {};

            attention_dots(&tile, &a, a.q, a.ldq, q, a.k, a.ldk, k, n, s);
            attention_dots(&tile, &a, g.d_out, a.ldo, q, a.v, a.ldv, k, n, dp);
            for (int i = 0; i < ATTENTION_OWN; i++) {
                int64_t row = q.first + attention_own_row(i);
                bool seen = row < q.rows && attention_sees(&a, row, n + lane);
                float score = attention_score(&a, s[i]);
                float p = seen ? expf(score - a.lse[q.lse_at + row]) : 0;

                weights[attention_own_row(i)][lane] =
                    seen ? dot_gradient(a, score, p, dp[i], delta[q.lse_at + row]) : 0;
            }
            attention_add(&tile, &a, weights, a.k, a.ldk, k, n, dq);
        }
        gradient_store(g, g.dq, g.lddq, q, dq, lane);
    }
}

/* A block for rows of keys of a KV head; it passes over the queries of all heads that read it. It
 * keeps two gradients, so one block on a processor may need all registers. */
__global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    attention_dkv_kernel(const __grid_constant__ struct attention_backward g, const float *delta)
{
    __shared__ struct attention_pair_tile tile;
    __shared__ float to_dv[ATTENTION_M][ATTENTION_N], to_dk[ATTENTION_M][ATTENTION_N];
    const struct attention &a = g.of;
    const int lane = (int)(threadIdx.x % 32);

    for (int64_t b = blockIdx.x; b < attention_key_blocks(&a, ATTENTION_M); b += gridDim.x) {
        const struct attention_rows k = attention_own_keys(&a, ATTENTION_M, b);
        float dk[ATTENTION_OWN][ATTENTION_CHUNKS] = {}, dv[ATTENTION_OWN][ATTENTION_CHUNKS] = {};

        for (int64_t head = 0; head < a.heads / a.kv_heads; head++) {
            const struct attention_rows q = attention_queries_of(&a, &k, head);
            int64_t from = a.keys ? 0 : k.first / ATTENTION_N * ATTENTION_N;
            int64_t end = attention_queries_end(&a, &k);

            for (int64_t n = from; n < end; n += ATTENTION_N) {
                float s[ATTENTION_OWN] = {}, dp[ATTENTION_OWN] = {};
                int64_t row = n + lane;

                attention_dots(&tile, &a, a.k, a.ldk, k, a.q, a.ldq, q, n, s);
                attention_dots(&tile, &a, a.v, a.ldv, k, g.d_out, a.ldo, q, n, dp);
                for (int i = 0; i < ATTENTION_OWN; i++) {
                    int own = attention_own_row(i);
                    bool seen = row < q.rows && attention_sees(&a, row, k.first + own);
                    float score = attention_score(&a, s[i]);
                    float p = seen ? expf(score - a.lse[q.lse_at + row]) : 0;

                    to_dv[own][lane] = p;
                    to_dk[own][lane] =
                        seen ? dot_gradient(a, score, p, dp[i], delta[q.lse_at + row]) : 0;
                }
                attention_add(&tile, &a, to_dv, g.d_out, a.ldo, q, n, dv);
                attention_add(&tile, &a, to_dk, a.q, a.ldq, q, n, dk);
            }
        }
        gradient_store(g, g.dk, g.lddk, k, dk, lane);
        gradient_store(g, g.dv, g.lddv, k, dv, lane);
    }
}

/* Gradients that are merged are f32. */
static bool gradient_check(struct device_queue *q, const struct attention_backward *g)
{
    struct tp_err err;

    if (g->type == DTYPE_F32 || (g->type == g->of.type && !g->of.merge))
        return true;
    tp_fail(&err, TP_E_INTERNAL, "gradients of attention in %s%s are not %s",
            dtype_name(g->of.type), g->of.merge ? ", merged," : "", dtype_name(g->type));
    device_fail(q->device, &err);
    return false;
}

void cuda_run_attention_backward(struct device_queue *q, const struct attention_backward *g)
{
    const struct attention *a = &g->of;
    int64_t rows = a->batch * a->heads * attention_query_step(a);
    float *delta;

    if (!attention_check(q, a) || !gradient_check(q, g) || rows == 0)
        return;
    if (!(delta = static_cast<float *>(device_scratch(q, rows * (int64_t)sizeof *delta))))
        return; /* the device keeps the failure */
    if (attention_mma_backward_fits(g) && attention_wgmma_fits(q, a)) {
        attention_wgmma_backward(q, g, delta);
        return;
    }
    run_delta(q, g, delta);
    if (attention_mma_backward_fits(g)) {
        attention_mma_backward(q, g, delta);
        return;
    }
    launch_rows(q, "the gradient of attention", attention_query_blocks(a, ATTENTION_M),
                attention_dq_kernel, *g, delta);
    launch_rows(q, "the gradient of attention", attention_key_blocks(a, ATTENTION_M),
                attention_dkv_kernel, *g, delta);
}
