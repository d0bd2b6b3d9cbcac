#include "kernels/attention.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/gemm.h"
#include "kernels/thread.h"
#include "kernels/vec.h"

/*
 * A block of BLOCK query rows meets keys 0 .. its last row, as one product, so that what lies right
 * of the diagonal's block is never computed. Scores of a block are BLOCK x seq and live in the
 * second-level cache for the lengths trained here.
 */
enum { BLOCK = 64 };

/* One block of rows of one head: where everything is. */
struct tile {
    const struct attention *a;
    int64_t row0, rows, cols; /* query rows row0 .. row0 + rows - 1; keys 0 .. cols - 1 */
    const char *q, *k, *v;    /* q at row0, k and v at position 0 */
    char *out;
    float *lse;
    float *s, *ds, *o; /* scores [rows][cols]; the same for gradients; [rows][head_dim] */
    float *delta;      /* [rows] */
    uint16_t *p16;     /* scores in bf16 [rows][cols] */
};

struct grad {
    const char *d_out;
    float *dq, *dk, *dv;
    int64_t lddq, lddk, lddv;
};

struct work {
    const struct attention *a;
    struct grad g;
    struct tp_err *err;
    atomic_int failed;
};

static int64_t seq_padded(const struct attention *a)
{
    return (a->seq + 15) / 16 * 16;
}

/* Floats a thread: scores, their gradient, half as many for bf16 scores, a block of out, delta. */
static int64_t workspace_one(const struct attention *a)
{
    return BLOCK * (seq_padded(a) * 5 / 2 + (a->head_dim + 15) / 16 * 16 + 16);
}

int64_t attention_workspace(const struct attention *a)
{
    return workspace_one(a) * kernels_threads();
}

static void tile_at(struct tile *t, const struct attention *a, int64_t b, int64_t h, int64_t row0,
                    int thread)
{
    int64_t bytes = a->type == DTYPE_F32 ? 4 : 2;
    int64_t kv = h / (a->heads / a->kv_heads);
    float *w = a->workspace + thread * workspace_one(a);

    t->a = a;
    t->row0 = row0;
    t->rows = a->seq - row0 < BLOCK ? a->seq - row0 : BLOCK;
    t->cols = row0 + t->rows;
    t->q = (const char *)a->q + ((b * a->seq + row0) * a->ldq + h * a->head_dim) * bytes;
    t->k = (const char *)a->k + (b * a->seq * a->ldk + kv * a->head_dim) * bytes;
    t->v = (const char *)a->v + (b * a->seq * a->ldv + kv * a->head_dim) * bytes;
    t->out = (char *)a->out + ((b * a->seq + row0) * a->ldo + h * a->head_dim) * bytes;
    t->lse = a->lse + (b * a->heads + h) * a->seq + row0;
    t->s = w;
    t->ds = t->s + BLOCK * seq_padded(a);
    t->o = t->ds + BLOCK * seq_padded(a);
    t->delta = t->o + BLOCK * ((a->head_dim + 15) / 16 * 16);
    t->p16 = (uint16_t *)(t->delta + BLOCK * 16);
}

/* Scores s = scale q k^T of the tile; those right of the diagonal are nonsense. */
static tp_status scores(const struct tile *t, struct tp_err *err)
{
    const struct attention *a = t->a;
    const struct gemm g = { .trans_b = true,
                            .m = t->rows,
                            .n = t->cols,
                            .k = a->head_dim,
                            .a = t->q,
                            .lda = a->ldq,
                            .b = t->k,
                            .ldb = a->ldk,
                            .c = t->s,
                            .ldc = t->cols,
                            .alpha = a->scale,
                            .type = a->type };
    return gemm(&g, err);
}

/* Softmax over s[0 .. n - 1], not yet divided by the sum, which is returned; zero to cols.
 * *max gets the largest score. */
static KERNEL_CLONES float softmax_row(float *s, int64_t n, int64_t cols, float *max)
{
    float m = -INFINITY, sum = 0;

#pragma omp simd reduction(max : m)
    for (int64_t i = 0; i < n; i++)
        m = s[i] > m ? s[i] : m;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        s[i] = vec_exp(s[i] - m);
        sum += s[i];
    }
    memset(s + n, 0, (size_t)(cols - n) * sizeof *s);
    *max = m;
    return sum;
}

static KERNEL_CLONES void round_row(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16(x[i]);
}

static KERNEL_CLONES void scale_row_f32(float *y, const float *x, float by, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * by;
}

static KERNEL_CLONES void scale_row_bf16(uint16_t *y, const float *x, float by, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16(x[i] * by);
}

static tp_status forward_tile(const struct tile *t, struct tp_err *err)
{
    const struct attention *a = t->a;
    bool f32 = a->type == DTYPE_F32;
    const struct gemm pv = { .m = t->rows,
                             .n = a->head_dim,
                             .k = t->cols,
                             .a = f32 ? (void *)t->s : (void *)t->p16,
                             .lda = t->cols,
                             .b = t->v,
                             .ldb = a->ldv,
                             .c = t->o,
                             .ldc = a->head_dim,
                             .alpha = 1,
                             .type = a->type };
    float sum[BLOCK];
    tp_status st = scores(t, err);

    if (st != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++) {
        float max;
        sum[i] = softmax_row(t->s + i * t->cols, t->row0 + i + 1, t->cols, &max);
        t->lse[i] = max + logf(sum[i]);
    }
    if (!f32)
        round_row(t->p16, t->s, t->rows * t->cols);
    if ((st = gemm(&pv, err)) != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++) {
        const float *o = t->o + i * a->head_dim;
        if (f32)
            scale_row_f32((float *)t->out + i * a->ldo, o, 1.0f / sum[i], a->head_dim);
        else
            scale_row_bf16((uint16_t *)t->out + i * a->ldo, o, 1.0f / sum[i], a->head_dim);
    }
    return TP_OK;
}

/* The first failure's message is kept; the others stop early. */
static void fail(struct work *w, const struct tp_err *err)
{
    if (!atomic_exchange(&w->failed, 1))
        *w->err = *err;
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct work *w = ctx;
    const struct attention *a = w->a;
    struct tp_err err = { 0 };
    struct tile t;

    for (int64_t i = lo; i < hi && !atomic_load(&w->failed); i++)
        for (int64_t row0 = 0; row0 < a->seq; row0 += BLOCK) {
            tile_at(&t, a, i / a->heads, i % a->heads, row0, thread);
            if (forward_tile(&t, &err) != TP_OK) {
                fail(w, &err);
                return;
            }
        }
}

tp_status attention_forward(const struct attention *a, struct tp_err *err)
{
    struct work w = { .a = a, .err = err };

    kernels_for(a->batch * a->heads, 1, forward_range, &w);
    return atomic_load(&w.failed) ? err->status : TP_OK;
}

/* p = exp(s - lse) left of the diagonal, zero right of it. */
static KERNEL_CLONES void probability_row(float *s, float lse, int64_t n, int64_t cols)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        s[i] = vec_exp(s[i] - lse);
    memset(s + n, 0, (size_t)(cols - n) * sizeof *s);
}

static KERNEL_CLONES float dot_f32(const float *x, const float *y, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static KERNEL_CLONES float dot_bf16(const uint16_t *x, const uint16_t *y, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += vec_from_bf16(x[i]) * vec_from_bf16(y[i]);
    return sum;
}

/* Gradient of the scores before scaling, in place of the probabilities' gradient dp:
 * ds = p (dp - delta). */
static KERNEL_CLONES void score_gradient(float *dp, const float *p, float delta, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dp[i] = p[i] * (dp[i] - delta);
}

/* Probabilities into t->s (and t->p16), rowsum(d_out * out) into t->delta. */
static tp_status backward_scores(const struct tile *t, const char *d_out, struct tp_err *err)
{
    const struct attention *a = t->a;
    tp_status st = scores(t, err);

    if (st != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++) {
        int64_t at = i * a->ldo;
        probability_row(t->s + i * t->cols, t->lse[i], t->row0 + i + 1, t->cols);
        t->delta[i] = a->type == DTYPE_F32 ? dot_f32((const float *)d_out + at,
                                                     (const float *)t->out + at, a->head_dim)
                                           : dot_bf16((const uint16_t *)d_out + at,
                                                      (const uint16_t *)t->out + at, a->head_dim);
    }
    if (a->type != DTYPE_F32)
        round_row(t->p16, t->s, t->rows * t->cols);
    return TP_OK;
}

/* Add one tile's part to dq (its rows), dk and dv (keys 0 .. cols - 1). `first`: dk and dv are
 * written, not added to. */
static tp_status backward_tile(const struct tile *t, const char *d_out, float *dq, float *dk,
                               float *dv, const struct grad *g, bool first, struct tp_err *err)
{
    const struct attention *a = t->a;
    bool f32 = a->type == DTYPE_F32;
    float beta = first ? 0 : 1;
    const void *p = f32 ? (const void *)t->s : t->p16;
    const void *ds = f32 ? (const void *)t->ds : t->p16;
    const struct gemm to_dv = { .trans_a = true,
                                .m = t->cols,
                                .n = a->head_dim,
                                .k = t->rows,
                                .a = p,
                                .lda = t->cols,
                                .b = d_out,
                                .ldb = a->ldo,
                                .c = dv,
                                .ldc = g->lddv,
                                .alpha = 1,
                                .beta = beta,
                                .type = a->type };
    const struct gemm to_dp = { .trans_b = true,
                                .m = t->rows,
                                .n = t->cols,
                                .k = a->head_dim,
                                .a = d_out,
                                .lda = a->ldo,
                                .b = t->v,
                                .ldb = a->ldv,
                                .c = t->ds,
                                .ldc = t->cols,
                                .alpha = 1,
                                .type = a->type };
    const struct gemm to_dq = { .m = t->rows,
                                .n = a->head_dim,
                                .k = t->cols,
                                .a = ds,
                                .lda = t->cols,
                                .b = t->k,
                                .ldb = a->ldk,
                                .c = dq,
                                .ldc = g->lddq,
                                .alpha = a->scale,
                                .type = a->type };
    const struct gemm to_dk = { .trans_a = true,
                                .m = t->cols,
                                .n = a->head_dim,
                                .k = t->rows,
                                .a = ds,
                                .lda = t->cols,
                                .b = t->q,
                                .ldb = a->ldq,
                                .c = dk,
                                .ldc = g->lddk,
                                .alpha = a->scale,
                                .beta = beta,
                                .type = a->type };
    tp_status st;

    TP_TRY(backward_scores(t, d_out, err));
    TP_TRY(gemm(&to_dv, err));
    TP_TRY(gemm(&to_dp, err));
    for (int64_t i = 0; i < t->rows; i++)
        score_gradient(t->ds + i * t->cols, t->s + i * t->cols, t->delta[i], t->cols);
    if (!f32)
        round_row(t->p16, t->ds, t->rows * t->cols);
    TP_TRY(gemm(&to_dq, err));
    TP_TRY(gemm(&to_dk, err));
done:
    return st;
}

/* All query heads of one kv head of one sequence. The last block comes first: it meets every key,
 * so it writes dk and dv and the others add. */
static tp_status backward_group(const struct work *w, int64_t b, int64_t kv, int thread,
                                struct tp_err *err)
{
    const struct attention *a = w->a;
    const struct grad *g = &w->g;
    int64_t group = a->heads / a->kv_heads, bytes = a->type == DTYPE_F32 ? 4 : 2;
    int64_t last = (a->seq - 1) / BLOCK * BLOCK;
    float *dk = g->dk + b * a->seq * g->lddk + kv * a->head_dim;
    float *dv = g->dv + b * a->seq * g->lddv + kv * a->head_dim;
    struct tile t;
    tp_status st = TP_OK;

    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t row0 = last; row0 >= 0; row0 -= BLOCK) {
            int64_t row = b * a->seq + row0;
            tile_at(&t, a, b, h, row0, thread);
            TP_TRY(backward_tile(&t, g->d_out + (row * a->ldo + h * a->head_dim) * bytes,
                                 g->dq + row * g->lddq + h * a->head_dim, dk, dv, g,
                                 h == kv * group && row0 == last, err));
        }
done:
    return st;
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct work *w = ctx;
    struct tp_err err = { 0 };

    for (int64_t i = lo; i < hi && !atomic_load(&w->failed); i++)
        if (backward_group(w, i / w->a->kv_heads, i % w->a->kv_heads, thread, &err) != TP_OK) {
            fail(w, &err);
            return;
        }
}

tp_status attention_backward(const struct attention *a, const void *d_out, float *dq, int64_t lddq,
                             float *dk, int64_t lddk, float *dv, int64_t lddv, struct tp_err *err)
{
    struct work w = { .a = a, .g = { d_out, dq, dk, dv, lddq, lddk, lddv }, .err = err };

    if (a->seq > 0)
        kernels_for(a->batch * a->kv_heads, 1, backward_range, &w);
    return atomic_load(&w.failed) ? err->status : TP_OK;
}
