/* trainer/data_parallel/params_storage.c - the memory of the parameters; see
 * trainer/data_parallel/params.h. */
#include <string.h>

#include "trainer/data_parallel/params.h"

enum { FLOAT = sizeof(float), HALF = sizeof(uint16_t) };

static bool is_dealt(const struct params *p)
{
    return p->n_owners > 1;
}

/* Floats of the largest bucket's pack. */
static int64_t pack_floats(const struct params *p, bool weights, bool grads)
{
    int64_t most = 0;

    for (int i = 0; i < p->n_buckets; i++) {
        const struct bucket *b = &p->buckets[i];

        if (weights && b->weights_each > most)
            most = b->weights_each;
        if (grads && b->each > most)
            most = b->each;
    }
    return p->n_owners * most;
}

/* Of a span of gradients that are summed up. */
static int64_t sums_elements(const struct params *p)
{
    return (p->sharded ? p->n_owned : p->n_elements) + p->head.n;
}

void params_take(struct params *p, struct buffer_pool *shared, struct buffer_pool *own)
{
    bool bf16 = p->dtype == DTYPE_BF16;

    p->grad = buffer_pool_take(p->sharded ? own : shared,
                               p->n_elements + (p->sharded ? 0 : p->head.n), FLOAT);
    if (p->n_partial)
        p->partial = buffer_pool_take(shared, p->n_partial, FLOAT);
    if (bf16)
        p->value_bf16 = buffer_pool_take(own, p->n_elements, HALF);
    if (!bf16 || !is_dealt(p))
        p->value = buffer_pool_take(own, p->n_elements, FLOAT);
    else
        p->vectors = buffer_pool_take(own, p->n_vectors, FLOAT);
    if (p->sharded || (bf16 && is_dealt(p)))
        p->owned = buffer_pool_take(own, p->n_owned, FLOAT);
    if (p->sharded)
        p->owned_grad = buffer_pool_take(shared, p->n_owned + p->head.n, FLOAT);
    if (p->sharded && bf16)
        p->owned_bf16 = buffer_pool_take(own, p->n_owned, HALF);
    p->exp_avg = buffer_pool_take(own, p->n_owned, FLOAT);
    p->exp_avg_sq = buffer_pool_take(own, p->n_owned, FLOAT);
    if (is_dealt(p)) {
        p->pack_each = (pack_floats(p, true, !p->sharded) + 15) / 16 * 16;
        p->pack = buffer_pool_take(shared, p->n_packs * p->pack_each, FLOAT);
    }
    if (p->sharded)
        p->grad_pack = buffer_pool_take(shared, pack_floats(p, false, true), FLOAT);
    p->fold.sum = p->sharded ? p->owned_grad : p->grad;
    for (int i = 0; i < p->fold.levels; i++)
        p->fold.level[i] = buffer_pool_take(own, sums_elements(p), FLOAT);
    if (p->same_bits) {
        p->places = buffer_pool_take(shared, p->n_places, sizeof *p->places);
        p->rows = buffer_pool_take(shared, p->n_rows, sizeof *p->rows);
    }
}

int64_t params_value_bytes(const struct params *p)
{
    bool bf16 = p->dtype == DTYPE_BF16;
    int64_t owned = p->n_owned * (FLOAT + (bf16 ? HALF : 0));
    int64_t whole = p->n_elements * (bf16 ? HALF : FLOAT);

    if (p->sharded)
        return owned;
    if (!bf16)
        return whole;
    return whole + (is_dealt(p) ? p->n_owned + p->n_vectors : p->n_elements) * FLOAT;
}

int64_t params_grad_bytes(const struct params *p)
{
    return sums_elements(p) * (1 + p->fold.levels) * FLOAT;
}

int64_t params_window_bytes(const struct params *p)
{
    int64_t packs = pack_floats(p, true, false) + pack_floats(p, false, true);
    int64_t weights = p->dtype == DTYPE_BF16 ? p->n_elements * HALF + p->n_vectors * FLOAT
                                             : p->n_elements * FLOAT;

    return p->sharded ? weights + (p->n_elements + packs) * FLOAT : 0;
}

const void *params_weight(const struct params *p, const struct param *q)
{
    if (q->type == DTYPE_BF16)
        return p->value_bf16 + q->at;
    return p->vectors ? p->vectors + q->vector_at : p->value + q->at;
}

float *params_grad(const struct params *p, const struct param *q)
{
    return p->grad + q->at;
}

struct owned params_owned(const struct params *p, const struct param *q)
{
    struct owned o = { .n = q->own.n,
                       .value = p->owned ? p->owned + q->own.to : p->value + q->own.from,
                       .grad = p->sharded ? p->owned_grad + q->own.to : p->grad + q->own.grad,
                       .exp_avg = p->exp_avg + q->own.to,
                       .exp_avg_sq = p->exp_avg_sq + q->own.to };

    if (p->dtype == DTYPE_BF16)
        o.value_bf16 = p->sharded ? p->owned_bf16 + q->own.to : p->value_bf16 + q->own.from;
    return o;
}

struct sums params_sums(const struct params *p, const struct param *q)
{
    if (p->sharded)
        return (struct sums){ p->owned_grad + q->own.to, q->own.n };
    return (struct sums){ p->grad + q->at, q->n };
}

void params_round(const struct params *p)
{
    for (int i = 0; p->dtype == DTYPE_BF16 && i < p->n; i++) {
        struct owned o = params_owned(p, &p->list[i]);

        p->k.ops->cast(p->k.queue,
                       &(struct cast){ o.value_bf16, DTYPE_BF16, o.value, DTYPE_F32, o.n });
    }
}

/* Of the group of the same name: weights in bf16 may be there in whole, the rest is what is owned.
 */
void *params_place(const struct params *p, int i, const char *group, struct box *within,
                   enum dtype *dtype)
{
    const struct param *q = &p->list[i];
    const struct owned o = params_owned(p, q);
    bool bf16 = p->dtype == DTYPE_BF16;

    *dtype = DTYPE_F32;
    *within = q->own.box;
    if (!strcmp(group, GROUP_EXP_AVG))
        return o.exp_avg;
    if (!strcmp(group, GROUP_EXP_AVG_SQ))
        return o.exp_avg_sq;
    if (!strcmp(group, GROUP_MASTER))
        return bf16 ? o.value : NULL;
    if (strcmp(group, GROUP_PARAM) != 0)
        return NULL;
    *dtype = p->dtype;
    if (p->sharded)
        return bf16 ? (void *)o.value_bf16 : o.value;
    *within = q->box;
    return bf16 ? (void *)(p->value_bf16 + q->at) : p->value + q->at;
}

void params_copy_twins(const struct params *p)
{
    for (int i = 0; i < p->n; i++) {
        const struct owned to = params_owned(p, &p->list[i]);
        const struct owned from = params_owned(p, &p->list[params_twin(p, i)]);
        int64_t bytes = to.n * FLOAT;

        device_copy(p->k.queue, to.value, from.value, bytes);
        device_copy(p->k.queue, to.exp_avg, from.exp_avg, bytes);
        device_copy(p->k.queue, to.exp_avg_sq, from.exp_avg_sq, bytes);
    }
}
