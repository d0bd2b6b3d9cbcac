/* kernels/cpu/attention.c - see kernels/attention.h. */
#include "kernels/attention.h"

#include <stdatomic.h>
#include <stddef.h>

#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_row.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"

struct attention_work {
    const struct device_queue *queue;
    const struct attention_backward *a; /* forward uses `of` alone */
    float *scratch;                     /* of all threads */
    struct tp_err *err;
    atomic_int failed;
};

static tp_status forward_tile(const struct attention_tile *t, struct tp_err *err)
{
    const struct attention *a = t->a;
    const struct attention_scratch *w = t->w;
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
    float sum[ATTENTION_BLOCK], max[ATTENTION_BLOCK];
    tp_status st = attention_tile_scores(t, err);

    if (st != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++) {
        sum[i] = attention_softmax_row(w->s + i * t->ld, attention_tile_seen(t, i), t->ld, &max[i]);
        if (!f32)
            attention_round_row(w->p16 + i * t->ld, w->s + i * t->ld, t->ld);
    }
    if ((st = gemm_one(t->w->queue, &pv, err)) != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++)
        attention_finish_row(t, w->o + i * a->head_dim, i, max[i], sum[i]);
    return TP_OK;
}

/* The first failure's message is kept; the others stop early. */
static void fail(struct attention_work *w, const struct tp_err *err)
{
    if (!atomic_exchange(&w->failed, 1))
        *w->err = *err;
}

/* Query head h of sequence b. */
static tp_status forward_head(const struct attention *a, struct attention_scratch *w, int64_t b,
                              int64_t h, struct tp_err *err)
{
    struct attention_tile t;
    tp_status st = TP_OK;

    attention_load_head(w, a, b, h / (a->heads / a->kv_heads), false);
    for (int64_t row0 = 0; row0 < a->seq; row0 += ATTENTION_BLOCK) {
        attention_tile_at(&t, a, w, b, h, row0);
        TP_TRY(forward_tile(&t, err));
    }
done:
    return st;
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct attention_work *w = ctx;
    const struct attention *a = &w->a->of;
    struct attention_scratch scratch;
    struct tp_err err;

    attention_scratch_of(&scratch, a, w->queue, w->scratch, thread);
    for (int64_t i = lo; i < hi && !atomic_load(&w->failed); i++)
        if (forward_head(a, &scratch, i / a->heads, i % a->heads, &err) != TP_OK)
            fail(w, &err);
}

#ifdef __x86_64__

/* The same by AVX-512 BF16 instead of products of gemm_one. */
static void forward_range_bf16(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct attention_work *w = ctx;
    const struct attention *a = &w->a->of;
    struct attention_bf16 own;

    attention_bf16_scratch(&own, a, w->queue, w->scratch, thread);
    for (int64_t i = lo; i < hi; i++)
        attention_bf16_forward(a, &own, i / a->heads, i % a->heads);
}

#endif

/* Share n items among the threads, each of which has so many floats of scratch. The products of a
 * single item may be shared by all of them. */
static tp_status share(struct device_queue *q, const struct attention_backward *a, int64_t n,
                       int64_t floats_each, kernels_range_fn fn, struct tp_err *err)
{
    struct attention_work w = { .queue = q, .a = a, .err = err };
    int64_t floats = floats_each * q->device->threads;

    if (!(w.scratch = device_scratch(q, floats * (int64_t)sizeof *w.scratch)))
        return tp_fail(err, TP_E_NOMEM, "out of memory: %lld floats of scratch", (long long)floats);
    if (a->of.one_thread_each && n == 1)
        kernels_each(q, n, fn, &w);
    else
        kernels_for(q, n, 1, fn, &w);
    return atomic_load(&w.failed) ? err->status : TP_OK;
}

tp_status cpu_run_attention_forward(struct device_queue *q, const struct attention *a,
                                    struct tp_err *err)
{
    const struct attention_backward forward = { .of = *a };
    int64_t n = a->batch * a->heads;

#ifdef __x86_64__
    if (attention_bf16_usable(q, a))
        return share(q, &forward, n, attention_bf16_floats(a), forward_range_bf16, err);
#endif
    return share(q, &forward, n, attention_scratch_floats(a), forward_range, err);
}

/* Probabilities into w->s (and w->p16), rowsum(d_out * out) into w->delta. */
static tp_status backward_scores(const struct attention_tile *t, const char *d_out,
                                 struct tp_err *err)
{
    const struct attention *a = t->a;
    const struct attention_scratch *w = t->w;
    bool f32 = a->type == DTYPE_F32;
    tp_status st = attention_tile_scores(t, err);

    if (st != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++) {
        int64_t at = i * a->ldo, d = a->head_dim;
        attention_probability_row(w->s + i * t->ld, t->lse[i], attention_tile_seen(t, i), t->ld);
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
static tp_status backward_softmax(const struct attention_tile *t, const char *d_out,
                                  struct tp_err *err)
{
    const struct attention *a = t->a;
    const struct attention_scratch *w = t->w;
    const struct gemm to_dp = { .m = t->rows,
                                .n = t->ld,
                                .k = a->head_dim,
                                .a = d_out,
                                .lda = a->ldo,
                                .b = w->vt,
                                .ldb = w->ldkt,
                                .c = w->ds,
                                .ldc = t->ld,
                                .alpha = 1,
                                .type = a->type };
    tp_status st = gemm_one(t->w->queue, &to_dp, err);

    if (st != TP_OK)
        return st;
    for (int64_t i = 0; i < t->rows; i++) {
        attention_score_gradient(w->ds + i * t->ld, w->s + i * t->ld, w->delta[i],
                                 t->ld / ATTENTION_LANES);
        if (a->cap > 0)
            attention_multiply_row(w->ds + i * t->ld, w->slope + i * t->ld, t->ld);
        if (a->type != DTYPE_F32)
            attention_round_row(w->p16 + i * t->ld, w->ds + i * t->ld, t->ld);
    }
    return TP_OK;
}

/* Add one tile's part to dq (its rows), dk and dv (keys 0 .. cols - 1). `first`: dk and dv are
 * written, not added to; dq is written unless results are merged. */
static tp_status backward_tile(const struct attention_tile *t, const char *d_out,
                               const struct attention_backward *at, bool first, struct tp_err *err)
{
    const struct attention *a = t->a;
    const struct attention_scratch *w = t->w;
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
                                .beta = a->merge ? 1 : 0,
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
    TP_TRY(gemm_one(t->w->queue, &to_dv, err));
    TP_TRY(backward_softmax(t, d_out, err));
    TP_TRY(gemm_one(t->w->queue, &to_dq, err));
    TP_TRY(gemm_one(t->w->queue, &to_dk, err));
done:
    return st;
}

/* All query heads of one kv head of one sequence. The last block comes first: it uses every key, so
 * it writes dk and dv (unless they are added to), and the other blocks add. */
static tp_status backward_group(const struct attention_backward *g, struct attention_scratch *w,
                                int64_t b, int64_t kv, struct tp_err *err)
{
    const struct attention *a = &g->of;
    int64_t group = a->heads / a->kv_heads, d = a->head_dim;
    int64_t last = (a->seq - 1) / ATTENTION_BLOCK * ATTENTION_BLOCK;
    struct attention_backward at = *g;
    const char *d_out = g->d_out;
    struct attention_tile t;
    tp_status st = TP_OK;

    attention_load_head(w, a, b, kv, true);
    at.dk = (float *)g->dk + b * attention_k_step(a) * g->lddk + kv * d;
    at.dv = (float *)g->dv + b * attention_k_step(a) * g->lddv + kv * d;
    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t row0 = last; row0 >= 0; row0 -= ATTENTION_BLOCK) {
            int64_t row = b * attention_q_step(a) + row0;
            bool first = !a->merge && h == kv * group && row0 == last;

            at.dq = (float *)g->dq + row * g->lddq + h * d;
            attention_tile_at(&t, a, w, b, h, row0);
            TP_TRY(backward_tile(&t, d_out + (row * a->ldo + h * d) * attention_width(a), &at,
                                 first, err));
        }
done:
    return st;
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct attention_work *w = ctx;
    const struct attention *a = &w->a->of;
    struct attention_scratch scratch;
    struct tp_err err;

    attention_scratch_of(&scratch, a, w->queue, w->scratch, thread);
    for (int64_t i = lo; i < hi && !atomic_load(&w->failed); i++)
        if (backward_group(w->a, &scratch, i / a->kv_heads, i % a->kv_heads, &err) != TP_OK)
            fail(w, &err);
}

#ifdef __x86_64__

static void backward_range_bf16(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct attention_work *w = ctx;
    const struct attention *a = &w->a->of;
    struct attention_bf16 own;

    attention_bf16_scratch(&own, a, w->queue, w->scratch, thread);
    for (int64_t i = lo; i < hi; i++)
        attention_bf16_backward(w->a, &own, i / a->kv_heads, i % a->kv_heads);
}

#endif

tp_status cpu_run_attention_backward(struct device_queue *q, const struct attention_backward *a,
                                     struct tp_err *err)
{
    int64_t n = a->of.batch * a->of.kv_heads;

    if (a->type != DTYPE_F32)
        return tp_fail(err, TP_E_INTERNAL, "gradients of attention on the CPU are f32, not %s",
                       dtype_name(a->type));
    if (a->of.seq == 0)
        return TP_OK;
#ifdef __x86_64__
    if (attention_bf16_usable(q, &a->of))
        return share(q, a, n, attention_bf16_floats(&a->of), backward_range_bf16, err);
#endif
    return share(q, a, n, attention_scratch_floats(&a->of), backward_range, err);
}
