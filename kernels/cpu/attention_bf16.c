/* kernels/cpu/attention_bf16.c - see kernels/cpu/attention_bf16.h. */
#include "kernels/cpu/attention_bf16.h"

#ifdef __x86_64__

#include <math.h>
#include <stddef.h>

#include "kernels/cpu/attention_lanes.h"
#include "kernels/cpu/attention_row.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/panel_amx.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/unit.h"

enum { BLOCK = ATTENTION_BLOCK, LARGEST_HEAD = 256 };

static const float LOG2_E = 0x1.715476p0f, LN_2 = 0x1.62e43p-1f;

bool attention_bf16_usable(const struct device_queue *q, const struct attention *a)
{
    bool windowed = a->window > 0 && a->window < a->seq;

    /* keys and values are read in pairs along head_dim */
    return a->type == DTYPE_BF16 && !windowed && !(a->cap > 0) && a->head_dim % 2 == 0 &&
           a->head_dim <= LARGEST_HEAD && unit_usable(q, UNIT_AVX512_BF16);
}

/* ---- scratch ---- */

/* The next n words from *at, rounded up to a cache line; NULL where there is no memory yet. */
static void *take(float *base, int64_t *at, int64_t n)
{
    void *p = base ? base + *at : NULL;

    *at += (n + 15) / 16 * 16;
    return p;
}

/* Keys of a sequence, padded to whole vectors. */
static int64_t padded_keys(const struct attention *a)
{
    int64_t keys = a->keys ? a->keys : a->seq;

    return (keys + TRANSPOSE_LANES - 1) / TRANSPOSE_LANES * TRANSPOSE_LANES;
}

/* Lay out a thread's scratch; returns its floats. */
static int64_t lay_out(struct attention_bf16 *w, const struct attention *a, float *base)
{
    int64_t d = a->head_dim, at = 0;
    int64_t panels = panel_words(BLOCK, d, PANEL_COLUMNS);

    w->width = (d + PANEL_LANES - 1) / PANEL_LANES * PANEL_LANES;
    w->k_rows = take(base, &at, w->width * padded_keys(a) / 2);
    w->v_rows = take(base, &at, w->width * padded_keys(a) / 2);
    w->q = take(base, &at, panel_words(d, BLOCK, BLOCK));
    w->d_out = take(base, &at, panel_words(d, BLOCK, BLOCK));
    w->q_pairs = take(base, &at, panels);
    w->d_out_pairs = take(base, &at, panels);
    w->s = take(base, &at, BLOCK * BLOCK);
    w->ds = take(base, &at, BLOCK * BLOCK);
    w->sum = take(base, &at, d * BLOCK);
    w->rows = take(base, &at, BLOCK * w->width);
    w->pairs = take(base, &at, BLOCK / 2 * BLOCK);
    w->p_rows = take(base, &at, BLOCK * BLOCK / 2);
    w->ds_rows = take(base, &at, BLOCK * BLOCK / 2);
    w->loaded = -1;
    return at;
}

int64_t attention_bf16_floats(const struct attention *a)
{
    struct attention_bf16 w;

    return lay_out(&w, a, NULL);
}

void attention_bf16_scratch(struct attention_bf16 *w, const struct attention *a,
                            const struct device_queue *q, float *scratch, int thread)
{
    lay_out(w, a, scratch + thread * attention_bf16_floats(a));
    w->amx = unit_usable(q, UNIT_AMX_BF16);
    w->row = w->amx ? padded_keys(a) : 2;
    w->step = w->amx ? 2 : 2 * w->width;
}

/* ---- squares ---- */

/* y = keys or values x[keys][ldx] as operands whose sums run along keys: transposed for AMX, whose
 * tiles are rows; otherwise in pairs, which are next to each other for neighbours in head_dim. */
static void load_columns(const struct attention_bf16 *w, uint16_t *y, const char *x, int64_t ldx,
                         const struct attention *a)
{
    const uint16_t *from = (const uint16_t *)(const void *)x;
    int64_t n = a->keys ? a->keys : a->seq;

    if (w->amx)
        transpose(y, w->row, from, ldx, n, a->head_dim, (int)sizeof *y);
    else
        panel_pack_rows((uint32_t *)(void *)y, w->width, from, ldx, n, a->head_dim);
}

/* Load the values of kv head `kv` of sequence b, and its keys where wanted, unless they are. */
static void load_head(struct attention_bf16 *w, const struct attention *a,
                      const struct attention_tile *t, int64_t head, bool keys)
{
    if (w->loaded == head)
        return;
    w->loaded = head;
    load_columns(w, w->v_rows, t->v, a->ldv, a);
    if (keys)
        load_columns(w, w->k_rows, t->k, a->ldk, a);
}

static void product(const struct attention_bf16 *w, const struct panel_product *p)
{
    if (w->amx)
        panel_amx_product(&(struct panel_amx){
            .product = *p, .a_right = 2 * PANEL_TILE, .a_down = PANEL_TILE * p->a_row });
    else
        panel_product_rows(p);
}

/* The rows of a tile, and its keys from key0 on, at most a block. */
struct square {
    const struct attention_bf16 *w;
    const struct attention_tile *t;
    int64_t key0, keys;
    bool causal; /* it is on the diagonal */
};

static struct square square_at(const struct attention_bf16 *w, const struct attention_tile *t,
                               int64_t key0)
{
    int64_t left = t->cols - key0;

    return (struct square){ w, t, key0, left < BLOCK ? left : BLOCK,
                            !t->a->keys && key0 + BLOCK > t->row0 };
}

/* y[keys][block] = by x z: rows of keys or values x, and z of the block of query rows. */
static void rows_by(const struct square *s, float *y, const char *x, int64_t ldx, const uint32_t *z,
                    float by)
{
    product(s->w, &(struct panel_product){ .m = s->keys,
                                           .n = BLOCK,
                                           .pairs = s->t->a->head_dim / 2,
                                           .a = (const uint16_t *)(const void *)x + s->key0 * ldx,
                                           .a_row = ldx,
                                           .a_step = 2,
                                           .b = z,
                                           .c = y,
                                           .ldc = BLOCK,
                                           .alpha = by });
}

/* y[head_dim][block] = x^T z, added to y unless this is the first square: loaded keys or values x,
 * and a square z in pairs. */
static void columns_by(const struct square *s, float *y, const uint16_t *x, const uint32_t *z)
{
    const struct attention_bf16 *w = s->w;

    product(w, &(struct panel_product){ .m = s->t->a->head_dim,
                                        .n = BLOCK,
                                        .pairs = panel_pairs(s->keys),
                                        .a = x + s->key0 / 2 * w->step,
                                        .a_row = w->row,
                                        .a_step = w->step,
                                        .b = z,
                                        .c = y,
                                        .ldc = BLOCK,
                                        .alpha = 1,
                                        .beta = s->key0 ? 1 : 0 });
}

/* Add to the gradient of keys or values: y[keys][head_dim] = by x z + beta y, a square x as rows,
 * and panels z of the block of query rows. */
static void add_gradient(const struct square *s, float *y, int64_t ldy, const uint16_t *x,
                         const uint32_t *z, float by, float beta)
{
    int64_t d = s->t->a->head_dim;

    for (int64_t j = 0; j < d; j += PANEL_COLUMNS)
        product(s->w, &(struct panel_product){ .m = s->keys,
                                               .n = d - j < PANEL_COLUMNS ? d - j : PANEL_COLUMNS,
                                               .pairs = panel_pairs(s->t->rows),
                                               .a = x,
                                               .a_row = BLOCK,
                                               .a_step = 2,
                                               .b = z + j * (BLOCK / 2),
                                               .c = y + s->key0 * ldy + j,
                                               .ldc = ldy,
                                               .alpha = by,
                                               .beta = beta });
}

/* w->rows[block][width] = w->sum[head_dim][block] transposed */
static void sum_to_rows(const struct attention_bf16 *w, int64_t d)
{
    transpose(w->rows, w->width, w->sum, BLOCK, d, BLOCK, (int)sizeof(float));
}

/* ---- forward ---- */

static void forward_block(const struct attention *a, const struct attention_bf16 *w,
                          const struct attention_tile *t)
{
    attention_lanes max, sum, shrink;

    for (int64_t i = 0; i < BLOCK; i++)
        max[i] = -INFINITY, sum[i] = 0;
    panel_pack_columns(w->q, BLOCK, (const uint16_t *)(const void *)t->q, a->ldq, a->head_dim,
                       t->rows);
    for (int64_t key0 = 0; key0 < t->cols; key0 += BLOCK) {
        struct square s = square_at(w, t, key0);

        rows_by(&s, w->s, t->k, a->ldk, w->q, a->scale * LOG2_E);
        attention_lanes_softmax(w->pairs, w->s, s.keys, s.causal, max, sum, shrink);
        if (key0)
            attention_lanes_scale(w->sum, a->head_dim, shrink);
        columns_by(&s, w->sum, w->v_rows, w->pairs);
    }
    sum_to_rows(w, a->head_dim);
    for (int64_t i = 0; i < t->rows; i++)
        attention_finish_row(t, w->rows + i * w->width, i, max[i] * LN_2, sum[i]);
}

void attention_bf16_forward(const struct attention *a, struct attention_bf16 *w, int64_t b,
                            int64_t h)
{
    struct attention_tile t;

    if (w->amx)
        panel_amx_begin();
    for (int64_t row0 = 0; row0 < a->seq; row0 += BLOCK) {
        attention_tile_at(&t, a, NULL, b, h, row0);
        load_head(w, a, &t, b * a->kv_heads + h / (a->heads / a->kv_heads), false);
        forward_block(a, w, &t);
    }
    if (w->amx)
        panel_amx_end();
}

/* ---- backward ---- */

/* Where a block of query rows has its gradients: d_out and dq at its first row, dk and dv at the
 * first key. `first`: dk and dv are written, not added to. */
struct gradients {
    const uint16_t *d_out;
    float *dq, *dk, *dv;
    int64_t lddq, lddk, lddv;
    bool first;
};

/* Pack the block's rows of q and d_out in both forms; lse in units of ln 2, rowsum(d_out * out).
 * Rows that the block lacks have zeroes in all of them. */
static void load_block(const struct attention_bf16 *w, const struct attention_tile *t,
                       const struct gradients *g, attention_lanes lse, attention_lanes delta)
{
    const struct attention *a = t->a;
    const uint16_t *q = (const uint16_t *)(const void *)t->q;
    const uint16_t *out = (const uint16_t *)(const void *)t->out;
    int64_t d = a->head_dim;

    panel_pack_columns(w->q, BLOCK, q, a->ldq, d, t->rows);
    panel_pack_columns(w->d_out, BLOCK, g->d_out, a->ldo, d, t->rows);
    for (int64_t j = 0; j < d; j += PANEL_COLUMNS) {
        int64_t n = d - j < PANEL_COLUMNS ? d - j : PANEL_COLUMNS;
        panel_pack_rows(w->q_pairs + j * (BLOCK / 2), PANEL_COLUMNS, q + j, a->ldq, t->rows, n);
        panel_pack_rows(w->d_out_pairs + j * (BLOCK / 2), PANEL_COLUMNS, g->d_out + j, a->ldo,
                        t->rows, n);
    }
    for (int64_t i = 0; i < BLOCK; i++) {
        bool is_row = i < t->rows;
        lse[i] = is_row ? t->lse[i] * LOG2_E : 0;
        delta[i] = is_row ? attention_dot_bf16(g->d_out + i * a->ldo, out + i * a->ldo, d) : 0;
    }
}

static void backward_block(const struct attention_bf16 *w, const struct attention_tile *t,
                           const struct gradients *g)
{
    const struct attention *a = t->a;
    attention_lanes lse, delta;

    load_block(w, t, g, lse, delta);
    for (int64_t key0 = 0; key0 < t->cols; key0 += BLOCK) {
        struct square s = square_at(w, t, key0);
        float beta = g->first ? 0 : 1;

        rows_by(&s, w->s, t->k, a->ldk, w->q, a->scale * LOG2_E);
        attention_lanes_probabilities(w->s, w->p_rows, s.keys, s.causal, lse);
        add_gradient(&s, g->dv, g->lddv, w->p_rows, w->d_out_pairs, 1, beta);
        rows_by(&s, w->ds, t->v, a->ldv, w->d_out, 1);
        attention_lanes_gradient(w->pairs, w->ds_rows, w->s, w->ds, s.keys, delta);
        add_gradient(&s, g->dk, g->lddk, w->ds_rows, w->q_pairs, a->scale, beta);
        columns_by(&s, w->sum, w->k_rows, w->pairs);
    }
    sum_to_rows(w, a->head_dim);
    for (int64_t i = 0; i < t->rows; i++) {
        float *dq = g->dq + i * g->lddq;
        if (a->merge)
            attention_merge_row(dq, 1, w->rows + i * w->width, a->scale, a->head_dim);
        else
            attention_scale_row_f32(dq, w->rows + i * w->width, a->scale, a->head_dim);
    }
}

/* The last block comes first: it uses every key, so it writes dk and dv (unless they are added to),
 * and the other blocks add. */
void attention_bf16_backward(const struct attention_backward *g, struct attention_bf16 *w,
                             int64_t b, int64_t kv)
{
    const struct attention *a = &g->of;
    int64_t group = a->heads / a->kv_heads, d = a->head_dim;
    int64_t last = (a->seq - 1) / BLOCK * BLOCK, key = b * attention_k_step(a);
    struct gradients at = { .dk = (float *)g->dk + key * g->lddk + kv * d,
                            .dv = (float *)g->dv + key * g->lddv + kv * d,
                            .lddq = g->lddq,
                            .lddk = g->lddk,
                            .lddv = g->lddv,
                            .first = !a->merge };
    struct attention_tile t;

    if (w->amx)
        panel_amx_begin();
    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t row0 = last; row0 >= 0; row0 -= BLOCK) {
            int64_t row = b * attention_q_step(a) + row0;

            attention_tile_at(&t, a, NULL, b, h, row0);
            load_head(w, a, &t, b * a->kv_heads + kv, true);
            at.d_out = (const uint16_t *)g->d_out + row * a->ldo + h * d;
            at.dq = (float *)g->dq + row * g->lddq + h * d;
            backward_block(w, &t, &at);
            at.first = false;
        }
    if (w->amx)
        panel_amx_end();
}

#endif
