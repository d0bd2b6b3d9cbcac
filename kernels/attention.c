#include "kernels/attention.h"

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>

#include "kernels/attention_row.h"
#include "kernels/gemm.h"
#include "kernels/thread.h"
#include "kernels/transpose.h"

/*
 * A block of BLOCK query rows meets keys 0 .. its last row (or, without a mask, all keys), as one
 * product, so that what lies right of the diagonal's block is never computed. Scores of a block are
 * BLOCK x seq and live in the second-level cache for the lengths trained here.
 *
 * Keys and values of a head are transposed once, because small products of the form A B run at 108
 * GFLOP/s where A B^T runs at 50 to 90 (oneDNN 2.6, one Zen 4 core, 64 x 64 .. 256 x 64). Rows of
 * scores are padded to LANES, so that loops over them are whole vectors.
 */
enum { BLOCK = 64, LANES = ATTENTION_LANES };

static int64_t padded(int64_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* A thread's part of the workspace. */
struct scratch {
    float *kt, *vt;   /* keys and values of one head, [head_dim][padded(keys)] of `type` */
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
    const char *q, *k, *v;    /* q at row0, k and v at their first key */
    char *out;
    float *sum; /* instead of out, or NULL */
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

/* Keys of a sequence. */
static int64_t keys_of(const struct attention *a)
{
    return a->keys ? a->keys : a->seq;
}

/* Rows from one sequence to the next. */
static int64_t q_step_of(const struct attention *a)
{
    return a->q_step ? a->q_step : a->seq;
}

static int64_t k_step_of(const struct attention *a)
{
    return a->k_step ? a->k_step : keys_of(a);
}

/* Keys that row i of a tile sees. */
static int64_t seen_by(const struct tile *t, int64_t i)
{
    return t->a->keys ? t->a->keys : t->row0 + i + 1;
}

/* Floats of the parts of a thread's scratch, in the order of its fields. */
static int64_t scratch_floats(const struct attention *a, struct scratch *w, float *base)
{
    int64_t kv = padded(keys_of(a)) * a->head_dim, scores = padded(keys_of(a)) * BLOCK;

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

/* Where kv head `kv` of sequence b begins in rows x of k or v. */
static const char *kv_at(const struct attention *a, const void *x, int64_t ld, int64_t b,
                         int64_t kv)
{
    return (const char *)x + (b * k_step_of(a) * ld + kv * a->head_dim) * element_bytes(a);
}

/* Keys (and values, where wanted) of kv head `kv` of sequence b, unless they are there already. */
static void load_head(struct scratch *w, const struct attention *a, int64_t b, int64_t kv,
                      bool values)
{
    int64_t bytes = element_bytes(a), at = b * a->kv_heads + kv, n = keys_of(a);

    if (w->kt_of == at)
        return;
    w->kt_of = at;
    transpose(w->kt, padded(n), kv_at(a, a->k, a->ldk, b, kv), a->ldk, n, a->head_dim, (int)bytes);
    if (values)
        transpose(w->vt, padded(n), kv_at(a, a->v, a->ldv, b, kv), a->ldv, n, a->head_dim,
                  (int)bytes);
}

static void tile_at(struct tile *t, const struct attention *a, const struct scratch *w, int64_t b,
                    int64_t h, int64_t row0)
{
    int64_t bytes = element_bytes(a), kv = h / (a->heads / a->kv_heads);
    int64_t row = b * q_step_of(a) + row0;

    t->a = a;
    t->w = w;
    t->row0 = row0;
    t->rows = a->seq - row0 < BLOCK ? a->seq - row0 : BLOCK;
    t->cols = a->keys ? a->keys : row0 + t->rows;
    t->ld = padded(t->cols);
    t->q = (const char *)a->q + (row * a->ldq + h * a->head_dim) * bytes;
    t->k = kv_at(a, a->k, a->ldk, b, kv);
    t->v = kv_at(a, a->v, a->ldv, b, kv);
    t->out = (char *)a->out + (row * a->ldo + h * a->head_dim) * bytes;
    t->sum = a->sum ? a->sum + row * a->ldo + h * a->head_dim : NULL;
    t->lse = a->lse + (b * a->heads + h) * q_step_of(a) + row0;
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
                            .ldb = padded(keys_of(a)),
                            .c = t->w->s,
                            .ldc = t->ld,
                            .alpha = a->scale,
                            .type = a->type };
    return gemm(&g, err);
}

/* log(e^x + e^y) */
static float add_logs(float x, float y)
{
    float high = x > y ? x : y, low = x > y ? y : x;

    return high + log1pf(expf(low - high));
}

/* From the sum of values of row i, in w->o, to its result; `max` and `sum` are those of its scores
 * here. */
static void finish_row(const struct tile *t, int64_t i, float max, float sum)
{
    const struct attention *a = t->a;
    const float *o = t->w->o + i * a->head_dim;
    float *y = t->sum ? t->sum + i * a->ldo : (float *)t->out + i * a->ldo;
    float lse = max + logf(sum), before = t->lse[i];

    t->lse[i] = a->more ? add_logs(before, lse) : lse;
    if (a->more)
        attention_merge_row(y, expf(before - t->lse[i]), o, expf(max - t->lse[i]), a->head_dim);
    else if (t->sum || a->type == DTYPE_F32)
        attention_scale_row_f32(y, o, 1.0f / sum, a->head_dim);
    else
        attention_scale_row_bf16((uint16_t *)t->out + i * a->ldo, o, 1.0f / sum, a->head_dim);
}

static tp_status forward_tile(const struct tile *t, struct tp_err *err)
{
    const struct attention *a = t->a;
    const struct scratch *w = t->w;
    bool f32 = a->type == DTYPE_F32;
    const struct gemm pv = { .m = t->rows,
                             .n = a->head_dim,
                             .k = t->cols,
                             .a = f32 ? (const void *)w->s : w->p16,
                             .lda = t->ld,
                             .b = t->v,
                             .ldb = a->ldv,
                             .c = w->o,
                             .ldc = a->head_dim,
                             .alpha = 1,
                             .type = a->type };
    float sum[BLOCK], max[BLOCK];
    tp_status st = scores(t, err);

    if (st != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++) {
        sum[i] = attention_softmax_row(w->s + i * t->ld, seen_by(t, i), t->ld, &max[i]);
        if (!f32)
            attention_round_row(w->p16 + i * t->ld, w->s + i * t->ld, t->ld);
    }
    if ((st = gemm(&pv, err)) != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++)
        finish_row(t, i, max[i], sum[i]);
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
    struct tile t;
    tp_status st = TP_OK;

    load_head(w, a, b, h / (a->heads / a->kv_heads), false);
    for (int64_t row0 = 0; row0 < a->seq; row0 += BLOCK) {
        tile_at(&t, a, w, b, h, row0);
        TP_TRY(forward_tile(&t, err));
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

/* A single item's products may be all threads'. */
static void deal(const struct attention *a, int64_t n, kernels_range_fn fn, struct work *w)
{
    if (a->alone && n == 1)
        kernels_each(n, fn, w);
    else
        kernels_for(n, 1, fn, w);
}

tp_status attention_forward(const struct attention *a, struct tp_err *err)
{
    struct work w = { .a = a, .err = err };

    deal(a, a->batch * a->heads, forward_range, &w);
    return atomic_load(&w.failed) ? err->status : TP_OK;
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
        attention_probability_row(w->s + i * t->ld, t->lse[i], seen_by(t, i), t->ld);
        if (f32) {
            w->delta[i] =
                attention_dot_f32((const float *)d_out + at, (const float *)t->out + at, d);
        } else {
            w->delta[i] =
                attention_dot_bf16((const uint16_t *)d_out + at, (const uint16_t *)t->out + at, d);
            attention_round_row(w->p16 + i * t->ld, w->s + i * t->ld, t->ld);
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
                                .ldb = padded(keys_of(a)),
                                .c = w->ds,
                                .ldc = t->ld,
                                .alpha = 1,
                                .type = a->type };
    tp_status st = gemm(&to_dp, err);

    if (st != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++) {
        attention_score_gradient(w->ds + i * t->ld, w->s + i * t->ld, w->delta[i], t->ld / LANES);
        if (a->type != DTYPE_F32)
            attention_round_row(w->p16 + i * t->ld, w->ds + i * t->ld, t->ld);
    }
    return TP_OK;
}

/* Add one tile's part to dq (its rows), dk and dv (keys 0 .. cols - 1). `first`: dk and dv are
 * written, not added to; dq is written unless there is more. */
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
                                .beta = a->more ? 1 : 0,
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
 * so it writes dk and dv, where they are not added to, and the others add. */
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
    at.dk = g->dk + b * k_step_of(a) * g->lddk + kv * d;
    at.dv = g->dv + b * k_step_of(a) * g->lddv + kv * d;
    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t row0 = last; row0 >= 0; row0 -= BLOCK) {
            int64_t row = b * q_step_of(a) + row0;
            bool first = !a->more && h == kv * group && row0 == last;

            at.dq = g->dq + row * g->lddq + h * d;
            tile_at(&t, a, w, b, h, row0);
            TP_TRY(backward_tile(&t, g->d_out + (row * a->ldo + h * d) * element_bytes(a), &at,
                                 first, err));
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
        deal(a, a->batch * a->kv_heads, backward_range, &w);
    return atomic_load(&w.failed) ? err->status : TP_OK;
}
