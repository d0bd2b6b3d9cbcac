#include "kernels/attention.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/gemm.h"
#include "kernels/thread.h"
#include "kernels/transpose.h"
#include "kernels/vec.h"

/*
 * A block of BLOCK query rows meets keys 0 .. its last row, as one product, so that what lies right
 * of the diagonal's block is never computed. Scores of a block are BLOCK x seq and live in the
 * second-level cache for the lengths trained here.
 *
 * Keys and values of a head are transposed once, because small products of the form A B run at 108
 * GFLOP/s where A B^T runs at 50 to 90 (oneDNN 2.6, one Zen 4 core, 64 x 64 .. 256 x 64). Rows of
 * scores are padded to LANES, so that loops over them are whole vectors.
 */
enum { BLOCK = 64, LANES = TRANSPOSE_LANES };

static int64_t padded(int64_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* A thread's part of the workspace. */
struct scratch {
    float *kt, *vt;   /* keys and values of one head, [head_dim][padded(seq)] of `type` */
    float *s, *ds;    /* scores and their gradient, [BLOCK][padded(cols)] */
    uint16_t *p16;    /* either in bf16 */
    float *o, *delta; /* [BLOCK][head_dim], [BLOCK] */
    int64_t kt_of;    /* the sequence and kv head in kt and vt; -1: none */
};

/* One block of rows of one head: where everything is. */
struct tile {
    const struct attention *a;
    const struct scratch *w;
    int64_t row0, rows, cols; /* query rows row0 .. row0 + rows - 1; keys 0 .. cols - 1 */
    int64_t ld;               /* padded(cols) */
    const char *q, *k;        /* q at row0, k at position 0 */
    char *out;
    float *lse;
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

/* Floats of the parts of a thread's scratch, in the order of its fields. */
static int64_t scratch_floats(const struct attention *a, struct scratch *w, float *base)
{
    int64_t kv = padded(a->seq) * a->head_dim, scores = padded(a->seq) * BLOCK;

    if (w) {
        w->kt = base;
        w->vt = w->kt + kv;
        w->s = w->vt + kv;
        w->ds = w->s + scores;
        w->p16 = (uint16_t *)(w->ds + scores);
        w->o = w->ds + scores + scores / 2;
        w->delta = w->o + BLOCK * padded(a->head_dim);
        w->kt_of = -1;
    }
    return 2 * kv + scores * 5 / 2 + BLOCK * (padded(a->head_dim) + 1);
}

int64_t attention_workspace(const struct attention *a)
{
    return scratch_floats(a, NULL, NULL) * kernels_threads();
}

static void scratch_of(struct scratch *w, const struct attention *a, int thread)
{
    scratch_floats(a, w, a->workspace + thread * scratch_floats(a, NULL, NULL));
}

static int64_t element_bytes(const struct attention *a)
{
    return a->type == DTYPE_F32 ? 4 : 2;
}

/* Keys (and values, where wanted) of kv head `kv` of sequence b, unless they are there already. */
static void load_head(struct scratch *w, const struct attention *a, int64_t b, int64_t kv,
                      bool values)
{
    int64_t bytes = element_bytes(a), at = b * a->kv_heads + kv;

    if (w->kt_of == at)
        return;
    w->kt_of = at;
    transpose(w->kt, padded(a->seq),
              (const char *)a->k + (b * a->seq * a->ldk + kv * a->head_dim) * bytes, a->ldk, a->seq,
              a->head_dim, (int)bytes);
    if (values)
        transpose(w->vt, padded(a->seq),
                  (const char *)a->v + (b * a->seq * a->ldv + kv * a->head_dim) * bytes, a->ldv,
                  a->seq, a->head_dim, (int)bytes);
}

static void tile_at(struct tile *t, const struct attention *a, const struct scratch *w, int64_t b,
                    int64_t h, int64_t row0)
{
    int64_t bytes = element_bytes(a), kv = h / (a->heads / a->kv_heads);

    t->a = a;
    t->w = w;
    t->row0 = row0;
    t->rows = a->seq - row0 < BLOCK ? a->seq - row0 : BLOCK;
    t->cols = row0 + t->rows;
    t->ld = padded(t->cols);
    t->q = (const char *)a->q + ((b * a->seq + row0) * a->ldq + h * a->head_dim) * bytes;
    t->k = (const char *)a->k + (b * a->seq * a->ldk + kv * a->head_dim) * bytes;
    t->out = (char *)a->out + ((b * a->seq + row0) * a->ldo + h * a->head_dim) * bytes;
    t->lse = a->lse + (b * a->heads + h) * a->seq + row0;
}

/* Scores s = scale q k^T of the tile; those right of the diagonal are nonsense. */
static tp_status scores(const struct tile *t, struct tp_err *err)
{
    const struct attention *a = t->a;
    const struct gemm g = { .m = t->rows,
                            .n = t->ld,
                            .k = a->head_dim,
                            .a = t->q,
                            .lda = a->ldq,
                            .b = t->w->kt,
                            .ldb = padded(a->seq),
                            .c = t->w->s,
                            .ldc = t->ld,
                            .alpha = a->scale,
                            .type = a->type };
    return gemm(&g, err);
}

/* The n first scores of a row count: the rest of their vector is made -infinity, whose exponential
 * is 0; what lies beyond becomes 0 directly. Returns the number of whole vectors. */
VEC_INLINE int64_t mask_row(float *s, int64_t n, int64_t ld)
{
    int64_t vectors = (n + LANES - 1) / LANES;

    for (int64_t i = n; i < vectors * LANES; i++)
        s[i] = -INFINITY;
    memset(s + vectors * LANES, 0, (size_t)(ld - vectors * LANES) * sizeof *s);
    return vectors;
}

/* Softmax over s[0 .. n - 1], not yet divided by the sum, which is returned; zero to ld.
 * *max gets the largest score. */
static KERNEL_CLONES float softmax_row(float *s, int64_t n, int64_t ld, float *max)
{
    int64_t lanes = mask_row(s, n, ld) * LANES; /* known to be whole vectors */
    float m = -INFINITY, sum = 0;

    VEC_SIMD_MAX
    for (int64_t i = 0; i < lanes; i++)
        m = s[i] > m ? s[i] : m;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < lanes; i++) {
        s[i] = vec_exp(s[i] - m);
        sum += s[i];
    }
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

static tp_status forward_tile(const struct tile *t, const void *v, struct tp_err *err)
{
    const struct attention *a = t->a;
    const struct scratch *w = t->w;
    bool f32 = a->type == DTYPE_F32;
    const struct gemm pv = { .m = t->rows,
                             .n = a->head_dim,
                             .k = t->cols,
                             .a = f32 ? (const void *)w->s : w->p16,
                             .lda = t->ld,
                             .b = v,
                             .ldb = a->ldv,
                             .c = w->o,
                             .ldc = a->head_dim,
                             .alpha = 1,
                             .type = a->type };
    float sum[BLOCK];
    tp_status st = scores(t, err);

    if (st != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++) {
        float max;
        sum[i] = softmax_row(w->s + i * t->ld, t->row0 + i + 1, t->ld, &max);
        t->lse[i] = max + logf(sum[i]);
        if (!f32)
            round_row(w->p16 + i * t->ld, w->s + i * t->ld, t->ld);
    }
    if ((st = gemm(&pv, err)) != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++) {
        const float *o = w->o + i * a->head_dim;
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

/* Query head h of sequence b. */
static tp_status forward_head(const struct attention *a, struct scratch *w, int64_t b, int64_t h,
                              struct tp_err *err)
{
    int64_t kv = h / (a->heads / a->kv_heads);
    const char *v =
        (const char *)a->v + (b * a->seq * a->ldv + kv * a->head_dim) * element_bytes(a);
    struct tile t;
    tp_status st = TP_OK;

    load_head(w, a, b, kv, false);
    for (int64_t row0 = 0; row0 < a->seq; row0 += BLOCK) {
        tile_at(&t, a, w, b, h, row0);
        TP_TRY(forward_tile(&t, v, err));
    }
done:
    return st;
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct work *w = ctx;
    struct scratch scratch;
    struct tp_err err = { 0 };

    scratch_of(&scratch, w->a, thread);
    for (int64_t i = lo; i < hi && !atomic_load(&w->failed); i++)
        if (forward_head(w->a, &scratch, i / w->a->heads, i % w->a->heads, &err) != TP_OK)
            fail(w, &err);
}

tp_status attention_forward(const struct attention *a, struct tp_err *err)
{
    struct work w = { .a = a, .err = err };

    kernels_for(a->batch * a->heads, 1, forward_range, &w);
    return atomic_load(&w.failed) ? err->status : TP_OK;
}

/* p = exp(s - lse) left of the diagonal, zero right of it. */
static KERNEL_CLONES void probability_row(float *s, float lse, int64_t n, int64_t ld)
{
    int64_t lanes = mask_row(s, n, ld) * LANES;

#pragma omp simd
    for (int64_t i = 0; i < lanes; i++)
        s[i] = vec_exp(s[i] - lse);
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
static KERNEL_CLONES void score_gradient(float *dp, const float *p, float delta, int64_t vectors)
{
    int64_t lanes = vectors * LANES;

#pragma omp simd
    for (int64_t i = 0; i < lanes; i++)
        dp[i] = p[i] * (dp[i] - delta);
}

/* Probabilities into w->s (and w->p16), rowsum(d_out * out) into w->delta. */
static tp_status backward_scores(const struct tile *t, const char *d_out, struct tp_err *err)
{
    const struct attention *a = t->a;
    const struct scratch *w = t->w;
    bool f32 = a->type == DTYPE_F32;
    tp_status st = scores(t, err);

    if (st != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++) {
        int64_t at = i * a->ldo, d = a->head_dim;
        probability_row(w->s + i * t->ld, t->lse[i], t->row0 + i + 1, t->ld);
        if (f32) {
            w->delta[i] = dot_f32((const float *)d_out + at, (const float *)t->out + at, d);
        } else {
            w->delta[i] = dot_bf16((const uint16_t *)d_out + at, (const uint16_t *)t->out + at, d);
            round_row(w->p16 + i * t->ld, w->s + i * t->ld, t->ld);
        }
    }
    return TP_OK;
}

/* Gradients of the scores into w->ds (and w->p16). */
static tp_status backward_softmax(const struct tile *t, const char *d_out, struct tp_err *err)
{
    const struct attention *a = t->a;
    const struct scratch *w = t->w;
    const struct gemm to_dp = { .m = t->rows,
                                .n = t->ld,
                                .k = a->head_dim,
                                .a = d_out,
                                .lda = a->ldo,
                                .b = w->vt,
                                .ldb = padded(a->seq),
                                .c = w->ds,
                                .ldc = t->ld,
                                .alpha = 1,
                                .type = a->type };
    tp_status st = gemm(&to_dp, err);

    if (st != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++) {
        score_gradient(w->ds + i * t->ld, w->s + i * t->ld, w->delta[i], t->ld / LANES);
        if (a->type != DTYPE_F32)
            round_row(w->p16 + i * t->ld, w->ds + i * t->ld, t->ld);
    }
    return TP_OK;
}

/* Add one tile's part to dq (its rows), dk and dv (keys 0 .. cols - 1). `first`: dk and dv are
 * written, not added to. */
static tp_status backward_tile(const struct tile *t, const char *d_out, const struct grad *at,
                               bool first, struct tp_err *err)
{
    const struct attention *a = t->a;
    const struct scratch *w = t->w;
    bool f32 = a->type == DTYPE_F32;
    float beta = first ? 0 : 1;
    const void *p = f32 ? (const void *)w->s : w->p16;
    const void *ds = f32 ? (const void *)w->ds : w->p16;
    const struct gemm to_dv = { .trans_a = true,
                                .m = t->cols,
                                .n = a->head_dim,
                                .k = t->rows,
                                .a = p,
                                .lda = t->ld,
                                .b = d_out,
                                .ldb = a->ldo,
                                .c = at->dv,
                                .ldc = at->lddv,
                                .alpha = 1,
                                .beta = beta,
                                .type = a->type };
    const struct gemm to_dq = { .m = t->rows,
                                .n = a->head_dim,
                                .k = t->cols,
                                .a = ds,
                                .lda = t->ld,
                                .b = t->k,
                                .ldb = a->ldk,
                                .c = at->dq,
                                .ldc = at->lddq,
                                .alpha = a->scale,
                                .type = a->type };
    const struct gemm to_dk = { .trans_a = true,
                                .m = t->cols,
                                .n = a->head_dim,
                                .k = t->rows,
                                .a = ds,
                                .lda = t->ld,
                                .b = t->q,
                                .ldb = a->ldq,
                                .c = at->dk,
                                .ldc = at->lddk,
                                .alpha = a->scale,
                                .beta = beta,
                                .type = a->type };
    tp_status st;

    TP_TRY(backward_scores(t, d_out, err));
    TP_TRY(gemm(&to_dv, err));
    TP_TRY(backward_softmax(t, d_out, err));
    TP_TRY(gemm(&to_dq, err));
    TP_TRY(gemm(&to_dk, err));
done:
    return st;
}

/* All query heads of one kv head of one sequence. The last block comes first: it meets every key,
 * so it writes dk and dv and the others add. */
static tp_status backward_group(const struct work *work, struct scratch *w, int64_t b, int64_t kv,
                                struct tp_err *err)
{
    const struct attention *a = work->a;
    const struct grad *g = &work->g;
    int64_t group = a->heads / a->kv_heads, d = a->head_dim;
    int64_t last = (a->seq - 1) / BLOCK * BLOCK;
    struct grad at = *g;
    struct tile t;
    tp_status st = TP_OK;

    load_head(w, a, b, kv, true);
    at.dk = g->dk + b * a->seq * g->lddk + kv * d;
    at.dv = g->dv + b * a->seq * g->lddv + kv * d;
    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t row0 = last; row0 >= 0; row0 -= BLOCK) {
            int64_t row = b * a->seq + row0;
            at.dq = g->dq + row * g->lddq + h * d;
            tile_at(&t, a, w, b, h, row0);
            TP_TRY(backward_tile(&t, g->d_out + (row * a->ldo + h * d) * element_bytes(a), &at,
                                 h == kv * group && row0 == last, err));
        }
done:
    return st;
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct work *w = ctx;
    struct scratch scratch;
    struct tp_err err = { 0 };

    scratch_of(&scratch, w->a, thread);
    for (int64_t i = lo; i < hi && !atomic_load(&w->failed); i++)
        if (backward_group(w, &scratch, i / w->a->kv_heads, i % w->a->kv_heads, &err) != TP_OK)
            fail(w, &err);
}

tp_status attention_backward(const struct attention *a, const void *d_out, float *dq, int64_t lddq,
                             float *dk, int64_t lddk, float *dv, int64_t lddv, struct tp_err *err)
{
    struct work w = { .a = a, .g = { d_out, dq, dk, dv, lddq, lddk, lddv }, .err = err };

    if (a->seq > 0)
        kernels_for(a->batch * a->kv_heads, 1, backward_range, &w);
    return atomic_load(&w.failed) ? err->status : TP_OK;
}
