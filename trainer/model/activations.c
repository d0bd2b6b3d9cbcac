/* trainer/model/activations.c - see trainer/model/activations.h. */
#include "trainer/model/activations.h"

#include "layout/family.h"

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int largest_chunk(const struct net *n)
{
    int largest = 0;

    for (int i = 0; i < n->n_chunks; i++)
        largest = n->chunks[i].n > largest ? n->chunks[i].n : largest;
    return largest;
}

tp_status slot_init(struct slot *s, const struct net *n, struct arena *arena, struct tp_err *err)
{
    *s = (struct slot){ .layers = arena_array(arena, (size_t)largest_chunk(n), sizeof *s->layers) };
    if (!s->layers)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d layers", n->n_layers);
    return TP_OK;
}

/* Floats a row that a norm leaves. */
static int64_t stats_of(const struct net *n)
{
    return family_of(n->model)->norm == FAMILY_LAYER_NORM ? 2 : 1;
}

/* What attention leaves. */
static void attended_take(struct layer_slot *s, const struct net *n, int64_t rows,
                          struct buffer_pool *own)
{
    s->attended = buffer_pool_take(own, rows * n->shards * n->q_width, dtype_bytes(n->dtype));
    s->lse = buffer_pool_take(own, rows * n->shards * n->heads, sizeof(float));
}

/* Everything but x; what attention leaves only where it is kept. */
static void layer_take(struct layer_slot *s, const struct net *n, int64_t rows,
                       struct buffer_pool *shared, struct buffer_pool *own)
{
    int64_t h = n->model->hidden, e = dtype_bytes(n->dtype), stats = stats_of(n);
    int64_t stream_rows = rows / n->split, parts = rows * n->shards;

    s->stats = buffer_pool_take(own, stats * stream_rows, sizeof(float));
    s->normed = buffer_pool_take(own, stream_rows * h, e);
    s->qkv = buffer_pool_take(own, parts * n->qkv_width, e);
    if (n->recompute != RECOMPUTE_SELECTIVE)
        attended_take(s, n, rows, own);
    s->mid = buffer_pool_take(shared, stream_rows * h, sizeof(float));
    s->mid_stats = buffer_pool_take(own, stats * stream_rows, sizeof(float));
    s->mid_normed = buffer_pool_take(own, stream_rows * h, e);
    s->up = buffer_pool_take(own, parts * n->up_width, sizeof(float));
    s->hidden = buffer_pool_take(own, parts * n->ffn, e);
}

void slot_take(struct slot *s, const struct net *n, int64_t sequences, struct buffer_pool *shared,
               struct buffer_pool *own)
{
    int64_t rows = sequences * n->seq, h = n->model->hidden, stream_rows = rows / n->split;

    s->ids = buffer_pool_take(own, rows, sizeof(int32_t));
    s->targets = buffer_pool_take(own, rows, sizeof(int32_t));
    for (int i = 0; i < largest_chunk(n); i++) {
        s->layers[i].x = buffer_pool_take(shared, stream_rows * h, sizeof(float));
        if (n->recompute != RECOMPUTE_FULL)
            layer_take(&s->layers[i], n, rows, shared, own);
    }
    s->x = buffer_pool_take(shared, stream_rows * h, sizeof(float));
    if (n->is_last) {
        s->stats = buffer_pool_take(own, stats_of(n) * stream_rows, sizeof(float));
        s->normed = buffer_pool_take(own, stream_rows * h, dtype_bytes(n->dtype));
    }
}

static bool is_pipeline(const struct net *n)
{
    return !n->is_first || !n->is_last;
}

void scratch_take(struct scratch *s, const struct net *n, int64_t sequences,
                  struct buffer_pool *shared, struct buffer_pool *own)
{
    int64_t rows = sequences * n->seq, h = n->model->hidden, stream_rows = rows / n->split;
    int64_t parts = rows * n->shards, vocab = most(n->table.each, n->logit.each);

    for (int i = 0; i < (is_pipeline(n) ? SCHEDULE_BUFFERS : 1); i++)
        s->dx_buffers[i] =
            buffer_pool_take(is_pipeline(n) ? shared : own, stream_rows * h, sizeof(float));
    s->dx = s->dx_buffers[0];
    s->dnormed = buffer_pool_take(shared, stream_rows * h, sizeof(float));
    s->wide = buffer_pool_take(own, parts * most(most(n->ffn, n->q_width), vocab), sizeof(float));
    s->dqkv = buffer_pool_take(own, parts * n->qkv_width, sizeof(float));
    if (n->dtype == DTYPE_BF16) {
        s->narrow = buffer_pool_take(own, parts * most(most(n->up_width, n->qkv_width), vocab),
                                     sizeof(uint16_t));
        s->dy = buffer_pool_take(own, stream_rows * h, sizeof(uint16_t));
    }
    if (n->recompute == RECOMPUTE_FULL)
        layer_take(&s->layer, n, rows, shared, own);
    if (n->recompute == RECOMPUTE_SELECTIVE)
        attended_take(&s->layer, n, rows, own);
    if (n->tokens.n > 1)
        ring_take(&s->ring, sequences * n->seq * 2 * n->kv_width, n->dtype, shared);
    s->row_max = buffer_pool_take(shared, rows, sizeof(float));
    s->row_sums = buffer_pool_take(shared, 2 * rows, sizeof(float));
    if (n->shards > 1)
        s->part_sums = buffer_pool_take(own, 2 * parts, sizeof(float));
    if (n->same_bits)
        s->blocks =
            buffer_pool_take(shared, n->n_virtual / n->split * stats_of(n) * h, sizeof(float));
}
