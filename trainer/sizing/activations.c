/* trainer/sizing/activations.c - see trainer/sizing/activations.h. */
#include "trainer/sizing/activations.h"

#include <stddef.h>

/* The pools that a layer's buffers are taken from, and the buffers' kind. */
struct place {
    const struct rank_dims *dims;
    struct buffer_pools *pools;
    enum buffer_kind kind;
};

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t rows_of(const struct rank_dims *d)
{
    return d->sequences * d->seq;
}

/* Rows of the residual: with sp a rank has a part of them. */
static int64_t residual_rows(const struct rank_dims *d)
{
    return rows_of(d) / d->split;
}

/* Floats of the residual, and of the load that goes with it. */
static int64_t residual_floats(const struct rank_dims *d)
{
    return residual_rows(d) * d->hidden + d->sequences * d->load;
}

/* n elements of the run's dtype. */
static void *take_typed(const struct place *p, int64_t n)
{
    return buffer_pool_take(&p->pools->own, p->kind, n, dtype_bytes(p->dims->dtype));
}

/* n elements of what lies between products. */
static void *take_inner(const struct place *p, int64_t n)
{
    return buffer_pool_take(&p->pools->own, p->kind, n, dtype_bytes(p->dims->inner));
}

static float *take_floats(const struct place *p, int64_t n)
{
    return buffer_pool_take(&p->pools->own, p->kind, n, sizeof(float));
}

/* n floats for collectives. */
static float *take_shared(const struct place *p, int64_t n)
{
    return buffer_pool_take(&p->pools->shared, p->kind, n, sizeof(float));
}

/* n elements of what a block computes. */
static void *take_outer(const struct place *p, int64_t n)
{
    return buffer_pool_take(&p->pools->shared, p->kind, n, dtype_bytes(p->dims->outer));
}

/* ---- what a microbatch keeps ---- */

/* The results of attention. */
static void attended_take(struct activations_layer *s, const struct place *p)
{
    const struct rank_dims *d = p->dims;
    int64_t parts = rows_of(d) * d->shards;

    s->attended = take_typed(p, parts * d->q_width);
    s->lse = take_floats(p, parts * d->heads);
}

int64_t activations_host_rows(int experts, int ep)
{
    return experts + 1 + (ep > 1 ? 2 * (ep + 1) : 0);
}

/* Which experts compute the tokens. */
static void experts_take(struct activations_experts *e, const struct place *p)
{
    const struct rank_dims *d = p->dims;
    int64_t rows = rows_of(d), copies = rows * d->per_token;
    int64_t n = activations_host_rows(d->experts, d->ep);
    struct buffer_pool *own = &p->pools->own;

    e->probs = take_floats(p, rows * d->experts);
    e->weights = take_floats(p, copies);
    e->chosen = buffer_pool_take(own, p->kind, copies, sizeof *e->chosen);
    e->place = buffer_pool_take(own, p->kind, copies, sizeof *e->place);
    e->source = buffer_pool_take(own, p->kind, copies, sizeof *e->source);
    e->offsets = buffer_pool_take(own, p->kind, d->experts + 1, sizeof *e->offsets);
    e->host_rows = buffer_pool_take(&p->pools->pinned, BUFFER_HOST, n, sizeof *e->host_rows);
    if (d->ep == 1)
        return;
    e->groups = buffer_pool_take(own, p->kind, n, sizeof *e->groups);
    e->send = e->groups ? e->groups + d->experts + 1 : NULL;
    e->recv = e->groups ? e->send + d->ep + 1 : NULL;
    e->given = take_floats(p, rows * d->token_copies);
}

/* Whether blocks read the residual as it is: it has their type, and no norm is before them. */
static bool reads_residual(const struct rank_dims *d)
{
    return !d->has_pre_norms && d->dtype == DTYPE_F32;
}

/* What a block reads, and the statistics of the norm that computes it. */
static void normed_take(void **normed, float **stats, const struct place *p)
{
    const struct rank_dims *d = p->dims;
    int64_t rows = residual_rows(d);

    if (d->has_pre_norms)
        *stats = take_floats(p, d->norm_stats * rows);
    if (!reads_residual(d))
        *normed = take_typed(p, rows * d->hidden);
}

/* Queries and keys before their norms, and the statistics of these. */
static void heads_take(struct activations_layer *s, const struct place *p)
{
    const struct rank_dims *d = p->dims;
    int64_t parts = rows_of(d) * d->shards;
    int64_t norms = d->has_whole_norms ? 2 : d->heads + d->kv_heads;

    s->heads = take_inner(p, parts * (d->q_width + d->kv_width));
    s->head_stats = take_floats(p, parts * norms);
}

/* Everything but x. With selective recomputation the results of attention are not kept. */
static void layer_take(struct activations_layer *s, const struct place *p)
{
    const struct rank_dims *d = p->dims;
    int64_t rows = residual_rows(d), parts = rows_of(d) * d->shards;

    normed_take(&s->normed, &s->stats, p);
    s->qkv = take_typed(p, parts * d->qkv_width);
    if (d->has_head_norms || d->has_whole_norms)
        heads_take(s, p);
    if (d->recompute != RECOMPUTE_SELECTIVE)
        attended_take(s, p);
    s->mid = take_shared(p, rows * d->hidden);
    normed_take(&s->mid_normed, &s->mid_stats, p);
    if (d->has_post_norms) {
        s->attn_out = take_outer(p, rows * d->hidden);
        s->attn_out_stats = take_floats(p, rows);
        s->mlp_out = take_outer(p, rows * d->hidden);
        s->mlp_out_stats = take_floats(p, rows);
    }
    if (d->experts)
        experts_take(&s->experts, p);
    s->up = take_inner(p, parts * d->token_copies * d->up_width);
    s->hidden = take_typed(p, parts * d->token_copies * d->ffn);
}

static void activations_take_one(struct activations *s, const struct place *p)
{
    const struct rank_dims *d = p->dims;
    int64_t rows = residual_rows(d), n;

    s->ids = buffer_pool_take(&p->pools->own, p->kind, rows_of(d), sizeof *s->ids);
    s->targets = buffer_pool_take(&p->pools->own, p->kind, rows_of(d), sizeof *s->targets);
    n = buffer_pools_repeat(p->pools, d->stage_layers);
    for (int64_t i = 0; i < n; i++) {
        s->layers[i].x = take_shared(p, residual_floats(d));
        if (d->recompute != RECOMPUTE_FULL)
            layer_take(&s->layers[i], p);
    }
    buffer_pools_repeat_end(p->pools, d->stage_layers);
    s->x = take_shared(p, residual_floats(d));
    if (d->is_last) {
        s->stats = take_floats(p, d->norm_stats * rows);
        s->normed = take_typed(p, rows * d->hidden);
    }
}

void activations_take(struct activations *slots, int64_t n, const struct rank_dims *d,
                      struct buffer_pools *p)
{
    const struct place place = { d, p, BUFFER_ACTIVATIONS };
    int64_t times = buffer_pools_repeat(p, n);

    for (int64_t i = 0; i < times; i++)
        activations_take_one(&slots[i], &place);
    buffer_pools_repeat_end(p, n);
}

/* ---- what layers use one after another ---- */

static void ring_attention_take(struct ring_buffers *r, const struct place *p)
{
    const struct rank_dims *d = p->dims;
    int64_t elements = rows_of(d) * 2 * d->kv_width;

    for (int i = 0; i < 2 && d->is_ring; i++) {
        r->kv[i] = buffer_pool_take(&p->pools->shared, p->kind, elements, dtype_bytes(d->dtype));
        r->dkv[i] = take_shared(p, elements);
    }
    if (d->has_long_ring)
        r->dkv_part = take_floats(p, elements);
}

/* Gradients of the residual; in a pipeline they are sent. */
static void residual_grads_take(struct activations_scratch *s, const struct place *p)
{
    const struct rank_dims *d = p->dims;
    int64_t n = residual_floats(d);

    if (!d->is_pipeline)
        s->dx_buffers[0] = take_floats(p, n);
    for (int i = 0; d->is_pipeline && i < SCRATCH_DX_BUFFERS; i++)
        s->dx_buffers[i] = take_shared(p, n);
    s->dx = s->dx_buffers[0];
    s->outer = take_outer(p, residual_rows(d) * d->hidden);
    if (d->has_post_norms)
        s->dblock = take_floats(p, residual_rows(d) * d->hidden);
}

/* The widest row of logits, of gradients of a row-parallel layer's input, or of query, key and
 * value head by head. */
static int64_t ffn_floats(const struct rank_dims *d)
{
    int64_t width = most(d->logit_rows, most(d->token_copies * d->ffn, d->q_width));
    int64_t bytes = most(width, d->has_qkv_by_head ? d->qkv_width : 0) * dtype_bytes(d->inner);
    int64_t floats = (bytes + (int64_t)sizeof(float) - 1) / (int64_t)sizeof(float);

    if (d->is_ring) /* sums over the ranks' keys */
        floats = most(floats, d->q_width);
    return floats;
}

/* Scratch that is as wide as a tensor shard's part. */
static void wide_take(struct activations_scratch *s, const struct place *p)
{
    const struct rank_dims *d = p->dims;
    int64_t parts = rows_of(d) * d->shards;

    s->ffn_scratch = take_floats(p, parts * ffn_floats(d));
    s->dqkv = take_inner(p, parts * d->qkv_width);
    if (d->is_ring && d->inner != DTYPE_F32)
        s->dqkv_sums = take_floats(p, parts * d->qkv_width);
    if (d->inner != d->dtype) {
        int64_t width = most(d->token_copies * d->up_width, d->logit_rows);

        s->bf16_scratch = take_typed(p, parts * most(width, d->qkv_width));
    }
    if (d->dtype == DTYPE_BF16)
        s->dy = take_typed(p, residual_rows(d) * d->hidden);
}

static void expert_scratch_take(struct activations_scratch *s, const struct place *p)
{
    const struct rank_dims *d = p->dims;
    int64_t own = rows_of(d) * d->per_token, copies = rows_of(d) * d->token_copies;

    if (!d->experts)
        return;
    s->dlogits = take_typed(p, rows_of(d) * d->experts);
    if (d->ep == 1) {
        s->copies = take_typed(p, copies * d->hidden);
        s->results = take_inner(p, copies * d->hidden);
        s->dweights = take_floats(p, copies);
        return;
    }
    s->copies =
        buffer_pool_take(&p->pools->shared, p->kind, own * d->hidden, dtype_bytes(d->dtype));
    s->results =
        buffer_pool_take(&p->pools->shared, p->kind, copies * d->hidden, dtype_bytes(d->inner));
    s->dweights = take_shared(p, copies);
    s->received = take_typed(p, copies * d->hidden);
    s->returned = take_inner(p, own * d->hidden);
    s->sorted = take_shared(p, own);
    s->all_offsets = buffer_pool_take(&p->pools->own, p->kind, (int64_t)d->ep * (d->experts + 1),
                                      sizeof *s->all_offsets);
}

static void loss_take(struct activations_scratch *s, const struct place *p)
{
    const struct rank_dims *d = p->dims;

    s->row_max = take_shared(p, rows_of(d));
    s->row_sums = take_shared(p, 2 * rows_of(d));
    if (d->shards > 1)
        s->part_sums = take_floats(p, 2 * rows_of(d) * d->shards);
}

/* Sums over tp ranks of norms of all queries and of all keys; --same-bits: of blocks of rows, or of
 * norms of queries and keys. */
static void norm_sums_take(struct activations_scratch *s, const struct place *p)
{
    const struct rank_dims *d = p->dims;
    int64_t blocks = d->n_virtual / d->split * d->norm_stats * d->hidden;

    if (d->has_whole_norms && d->n_virtual > 1)
        s->norm_sums = take_shared(p, 2 * rows_of(d));
    if (d->has_whole_norms && d->shards > 1)
        s->norm_parts = take_floats(p, d->shards * 2 * rows_of(d));
    if (d->has_head_norms)
        blocks = most(blocks, 2 * d->shards * d->head_dim);
    if (d->has_whole_norms)
        blocks = most(blocks, d->q_width);
    if (d->same_bits)
        s->blocks = take_shared(p, blocks);
}

void activations_scratch_take(struct activations_scratch *s, const struct rank_dims *d,
                              struct buffer_pools *pools)
{
    const struct place p = { d, pools, BUFFER_WORKSPACE };
    int64_t whole = rows_of(d) * d->hidden;

    residual_grads_take(s, &p);
    wide_take(s, &p);
    expert_scratch_take(s, &p);
    if (d->recompute == RECOMPUTE_FULL)
        layer_take(&s->layer, &p);
    if (d->recompute == RECOMPUTE_SELECTIVE)
        attended_take(&s->layer, &p);
    ring_attention_take(&s->ring, &p);
    loss_take(s, &p);
    norm_sums_take(s, &p);
    if (d->split > 1)
        s->whole = take_shared(&p, whole);
    if (d->shards > 1)
        s->sums = take_floats(&p, d->shards * whole);
    if (d->has_unit_norms)
        s->unit_weight = take_floats(&p, most(d->hidden, d->head_dim));
    if (d->is_rotary)
        s->rope = take_floats(&p, d->seq * d->rotary_dim);
    if (d->has_local_rope)
        s->local_rope = take_floats(&p, d->seq * d->rotary_dim);
}
