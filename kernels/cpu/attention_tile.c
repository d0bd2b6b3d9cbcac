/* kernels/cpu/attention_tile.c - see kernels/cpu/attention_tile.h. */
#include "kernels/cpu/attention_tile.h"

#include <math.h>
#include <stddef.h>

#include "kernels/cpu/attention_row.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/transpose.h"

static int64_t padded(int64_t n)
{
    return (n + ATTENTION_LANES - 1) / ATTENTION_LANES * ATTENTION_LANES;
}

/* Keys of a sequence. */
static int64_t keys_of(const struct attention *a)
{
    return a->keys ? a->keys : a->seq;
}

/* Floats of the parts of a thread's scratch, in the order of its fields. */
static int64_t scratch_floats(const struct attention *a, struct attention_scratch *w, float *base)
{
    int64_t kv = padded(keys_of(a)) * a->head_dim, scores = padded(keys_of(a)) * ATTENTION_BLOCK;
    int64_t slopes = a->cap > 0 ? scores : 0;

    if (w) {
        w->ldkt = padded(keys_of(a));
        w->kt = base;
        w->vt = w->kt + kv;
        w->s = w->vt + kv;
        w->ds = w->s + scores;
        w->p16 = (uint16_t *)(w->ds + scores);
        w->slope = w->ds + scores + scores / 2;
        w->o = w->slope + slopes;
        w->delta = w->o + ATTENTION_BLOCK * padded(a->head_dim);
        w->kt_of = -1;
    }
    return 2 * kv + scores * 5 / 2 + slopes + ATTENTION_BLOCK * (padded(a->head_dim) + 1);
}

int64_t attention_scratch_floats(const struct attention *a)
{
    return scratch_floats(a, NULL, NULL);
}

void attention_scratch_of(struct attention_scratch *w, const struct attention *a,
                          const struct device_queue *q, float *scratch, int thread)
{
    w->queue = q;
    scratch_floats(a, w, scratch + thread * scratch_floats(a, NULL, NULL));
}

/* Where kv head `kv` of sequence b begins in rows x of k or v. */
static const char *kv_at(const struct attention *a, const void *x, int64_t ld, int64_t b,
                         int64_t kv)
{
    return (const char *)x + (b * attention_k_step(a) * ld + kv * a->head_dim) * attention_width(a);
}

void attention_load_head(struct attention_scratch *w, const struct attention *a, int64_t b,
                         int64_t kv, bool values)
{
    int64_t bytes = attention_width(a), at = b * a->kv_heads + kv, n = keys_of(a);

    if (w->kt_of == at)
        return;
    w->kt_of = at;
    transpose(w->kt, w->ldkt, kv_at(a, a->k, a->ldk, b, kv), a->ldk, n, a->head_dim, (int)bytes);
    if (values)
        transpose(w->vt, w->ldkt, kv_at(a, a->v, a->ldv, b, kv), a->ldv, n, a->head_dim,
                  (int)bytes);
}

void attention_tile_at(struct attention_tile *t, const struct attention *a,
                       const struct attention_scratch *w, int64_t b, int64_t h, int64_t row0)
{
    int64_t bytes = attention_width(a), kv = h / (a->heads / a->kv_heads);
    int64_t row = b * attention_q_step(a) + row0;

    t->a = a;
    t->w = w;
    t->row0 = row0;
    t->rows = a->seq - row0 < ATTENTION_BLOCK ? a->seq - row0 : ATTENTION_BLOCK;
    t->cols = a->keys ? a->keys : row0 + t->rows;
    t->ld = padded(t->cols);
    t->q = (const char *)a->q + (row * a->ldq + h * a->head_dim) * bytes;
    t->k = kv_at(a, a->k, a->ldk, b, kv);
    t->v = kv_at(a, a->v, a->ldv, b, kv);
    t->out = (char *)a->out + (row * a->ldo + h * a->head_dim) * bytes;
    t->sum = a->sum ? a->sum + row * a->ldo + h * a->head_dim : NULL;
    t->lse = a->lse + (b * a->heads + h) * attention_q_step(a) + row0;
}

static void hide_before_window(const struct attention_tile *t)
{
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t k = 0; k < attention_tile_first(t, i); k++)
            t->w->s[i * t->ld + k] = -INFINITY;
}

tp_status attention_tile_scores(const struct attention_tile *t, struct tp_err *err)
{
    const struct attention *a = t->a;
    const struct gemm g = { .m = t->rows,
                            .n = t->ld,
                            .k = a->head_dim,
                            .a = t->q,
                            .lda = a->ldq,
                            .b = t->w->kt,
                            .ldb = t->w->ldkt,
                            .c = t->w->s,
                            .ldc = t->ld,
                            .alpha = a->scale,
                            .type = a->type };
    tp_status st = gemm_one(t->w->queue, &g, err);

    if (!st && a->cap > 0)
        attention_cap_row(t->w->s, t->w->slope, a->cap, t->rows * t->ld);
    if (!st && a->window)
        hide_before_window(t);
    return st;
}

/* log(e^x + e^y) */
static float add_logs(float x, float y)
{
    float high = x > y ? x : y, low = x > y ? y : x;

    return high + log1pf(expf(low - high));
}

void attention_finish_row(const struct attention_tile *t, const float *o, int64_t i, float max,
                          float sum)
{
    const struct attention *a = t->a;
    float *y = t->sum ? t->sum + i * a->ldo : (float *)t->out + i * a->ldo;
    float lse = max + logf(sum), before = t->lse[i];

    t->lse[i] = a->merge ? add_logs(before, lse) : lse;
    if (a->merge)
        attention_merge_row(y, expf(before - t->lse[i]), o, expf(max - t->lse[i]), a->head_dim);
    else if (t->sum || a->type == DTYPE_F32)
        attention_scale_row_f32(y, o, 1.0f / sum, a->head_dim);
    else
        attention_scale_row_bf16((uint16_t *)t->out + i * a->ldo, o, 1.0f / sum, a->head_dim);
}
