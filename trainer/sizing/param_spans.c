/* trainer/sizing/param_spans.c - see trainer/sizing/param_spans.h. */
#include "trainer/sizing/param_spans.h"

enum { FLOAT = sizeof(float), HALF = sizeof(uint16_t) };

/* Elements of a span of summed gradients. */
static int64_t sums_elements(const struct param_sizes *z)
{
    return (z->is_sharded ? z->n_owned : z->n_elements) + z->n_head;
}

static void weights_take(struct param_spans *s, const struct param_sizes *z,
                         struct buffer_pool *own)
{
    bool is_bf16 = z->rank.dtype == DTYPE_BF16;
    enum buffer_kind whole = z->is_sharded ? BUFFER_UNITS : BUFFER_WEIGHTS;
    enum buffer_kind updated = is_bf16 ? BUFFER_MASTERS : BUFFER_WEIGHTS;

    if (is_bf16)
        s->value_bf16 = buffer_pool_take(own, whole, z->n_elements, HALF);
    if (is_bf16 && z->is_partitioned)
        s->vectors = buffer_pool_take(own, whole, z->n_vectors, FLOAT);
    else
        s->value = buffer_pool_take(own, z->is_sharded ? whole : updated, z->n_elements, FLOAT);
    if (z->is_sharded || (is_bf16 && z->is_partitioned))
        s->owned = buffer_pool_take(own, updated, z->n_owned, FLOAT);
    if (z->is_sharded && is_bf16)
        s->owned_bf16 = buffer_pool_take(own, BUFFER_WEIGHTS, z->n_owned, HALF);
}

static void grads_take(struct param_spans *s, const struct param_sizes *z, struct buffer_pools *p)
{
    if (z->is_sharded) {
        s->grad = buffer_pool_take(&p->own, BUFFER_UNITS, z->n_elements, FLOAT);
        s->owned_grad = buffer_pool_take(&p->shared, BUFFER_GRADS, sums_elements(z), FLOAT);
    } else {
        s->grad = buffer_pool_take(&p->shared, BUFFER_GRADS, sums_elements(z), FLOAT);
    }
    for (int i = 0; i < z->n_levels; i++)
        s->level[i] = buffer_pool_take(&p->own, BUFFER_GRADS, sums_elements(z), FLOAT);
    if (z->n_partial)
        s->partial = buffer_pool_take(&p->shared, BUFFER_WORKSPACE, z->n_partial, FLOAT);
}

static void packs_take(struct param_spans *s, const struct param_sizes *z,
                       struct buffer_pool *shared)
{
    enum buffer_kind kind = z->is_sharded ? BUFFER_UNITS : BUFFER_BUCKETS;

    if (z->is_partitioned)
        s->pack = buffer_pool_take(shared, kind, z->n_packs * z->pack_floats, FLOAT);
    if (z->is_sharded)
        s->grad_pack = buffer_pool_take(shared, kind, z->grad_pack_floats, FLOAT);
    if (z->is_sharded && z->rank.spec.ep > 1) {
        s->expert_pack = buffer_pool_take(shared, kind, z->expert_pack_floats, FLOAT);
        s->expert_grad_pack = buffer_pool_take(shared, kind, z->expert_grad_pack_floats, FLOAT);
    }
}

void param_spans_take(struct param_spans *s, const struct param_sizes *z, struct buffer_pools *p)
{
    grads_take(s, z, p);
    weights_take(s, z, &p->own);
    s->exp_avg = buffer_pool_take(&p->own, BUFFER_MOMENTS, z->n_owned, FLOAT);
    s->exp_avg_sq = buffer_pool_take(&p->own, BUFFER_MOMENTS, z->n_owned, FLOAT);
    packs_take(s, z, &p->shared);
    if (z->rank.same_bits) {
        s->places = buffer_pool_take(&p->shared, BUFFER_NUMBERS, z->n_places, sizeof *s->places);
        s->rows = buffer_pool_take(&p->shared, BUFFER_NUMBERS, z->n_rows, sizeof *s->rows);
    }
    s->squares = buffer_pool_take(&p->own, BUFFER_NUMBERS, z->n_entries, sizeof *s->squares);
}
